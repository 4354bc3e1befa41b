"""A server that answers with bytes given in advance, whatever they are."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


class ScriptedServer:
    """Serves until its context ends, and closes no connection before that.

    Args:
        wires: What is sent, head and all, by the text of the request's one message.
    """

    def __init__(self, wires: Mapping[str, bytes]) -> None:
        self._wires = wires
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._clients: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(60)
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                serving = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(serving)
                serving.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            data = b""
            while received := client.recv(1 << 16):
                data += received
                head, _, body = data.partition(b"\r\n\r\n")
                length = _LENGTH.search(head)
                if length is not None and len(body) == int(length[1]):
                    data = b""
                    client.sendall(self._wires[json.loads(body)["messages"][-1]["content"]])
