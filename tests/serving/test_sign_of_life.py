"""A node without power neither accepts nor refuses; one that lives does, whatever its programs do."""

from __future__ import annotations

import contextlib
import socket

from dynamo_mlperf.serving.sign_of_life import silent

CALLERS = 4
"""More than wait at a door that nobody opens: the kernel lets the call of who comes next go unanswered (listen(2))."""


def test_only_a_node_that_says_nothing_is_silent() -> None:
    with contextlib.ExitStack() as held:
        serves, refuses, says_nothing = (held.enter_context(socket.socket()) for _ in range(3))
        for one in (serves, refuses, says_nothing):
            one.bind(("127.0.0.1", 0))
        serves.listen()
        says_nothing.listen(0)
        for _ in range(CALLERS):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)  # noqa: FBT003 - the socket module's signature
            caller.connect_ex(says_nothing.getsockname())
        sockets = {"serves": serves, "refuses": refuses, "gone": says_nothing}
        assert silent({name: one.getsockname() for name, one in sockets.items()}) == ["gone"]
    assert silent({}) == []
