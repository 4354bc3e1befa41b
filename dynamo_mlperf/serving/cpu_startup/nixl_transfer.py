"""One NIXL transfer between two nodes, for `doctor`: run by the engines' own Python, its text handed to `python -c`.

    give ADDRESS PORT MIB     waits at that place, lends MIB of memory, ends when the other has read it
    take ADDRESS PORT MIB     reads it several times, compares it, prints one JSON object

The agents exchange what NIXL needs to know of each other over that TCP connection; the data goes by NIXL's UCX backend.
"""

import ctypes
import json
import socket
import struct
import sys
import time

REPEATS = 5
CONNECT_S = 60.0
TRANSFER_S = 60.0


def send(there, block):
    """A block with its length before it."""
    there.sendall(struct.pack("!Q", len(block)) + block)


def receive(there):
    """The next block."""
    (size,) = struct.unpack("!Q", exactly(there, 8))
    return exactly(there, size)


def exactly(there, size):
    """So many bytes, or the end of this program."""
    block = b""
    while len(block) < size:
        more = there.recv(size - len(block))
        if not more:
            raise SystemExit("the other node closed the connection")
        block += more
    return block


def agent(name, size):
    """A NIXL agent and the memory that it has registered."""
    from nixl._api import nixl_agent, nixl_agent_config

    made = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = ctypes.create_string_buffer(size)
    made.register_memory([(ctypes.addressof(memory), size, 0, "")], "DRAM")
    return made, memory


def give(place, size):
    """Lend memory to the other node until it says that it is done."""
    made, memory = agent("give", size)
    memory.raw = (bytes(range(251)) * (size // 251 + 1))[:size]
    with socket.create_server(place) as door:
        door.settimeout(CONNECT_S)
        there, _ = door.accept()
        with there:
            there.settimeout(TRANSFER_S)
            send(there, made.get_agent_metadata())
            send(there, struct.pack("!Q", ctypes.addressof(memory)))
            receive(there)


def take(place, size):
    """Read the other node's memory, and say how long that took and whether it arrived whole."""
    made, memory = agent("take", size)
    there = connected(place)
    with there:
        there.settimeout(TRANSFER_S)
        peer = made.add_remote_agent(receive(there))
        (address,) = struct.unpack("!Q", receive(there))
        here = made.get_xfer_descs([(ctypes.addressof(memory), size, 0)], "DRAM")
        remote = made.get_xfer_descs([(address, size, 0)], "DRAM")
        handle = made.initialize_xfer("READ", here, remote, peer, b"done")
        seconds = [transferred(made, handle) for _ in range(REPEATS)]
        whole = memory.raw == (bytes(range(251)) * (size // 251 + 1))[:size]
        send(there, b"done")
    sys.stdout.write(json.dumps({"bytes": size, "seconds": seconds, "whole": whole}) + "\n")


def connected(place):
    """A connection to the other node, once it listens."""
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(place, 2.0)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def transferred(made, handle):
    """Seconds that one transfer takes."""
    began = time.monotonic()
    state = made.transfer(handle)
    while state not in ("DONE", "ERR"):
        if time.monotonic() - began > TRANSFER_S:
            raise SystemExit(f"no end of the transfer after {TRANSFER_S:g} s")
        state = made.check_xfer_state(handle)
    if state == "ERR":
        raise SystemExit("NIXL says that the transfer failed")
    return time.monotonic() - began


if __name__ == "__main__":
    role, address, port, mib = sys.argv[1:]
    {"give": give, "take": take}[role]((address, int(port)), int(mib) * 2**20)
