"""The child process of `denizen-bench arena`: sends back what it gets, over an arena or a socket.

`python -m denizen.bench.echo arena|socket FD`; ends when the other side closes. Of an arena message with an attachment
only the envelope goes back, so that a flow of blobs is measured in one direction.
"""

from __future__ import annotations

import socket
import sys


def arena(fd: int) -> None:
    from denizen._native import Arena, PeerGone

    with Arena.attach(fd) as peer:
        peer.set_phase(4)
        try:
            while True:
                for envelope, _ in peer.recv():
                    peer.send(envelope)
        except PeerGone:
            return


def plain_socket(fd: int) -> None:
    with socket.socket(fileno=fd) as peer:
        while message := peer.recv(1 << 16):
            peer.send(message)


if __name__ == "__main__":
    {"arena": arena, "socket": plain_socket}[sys.argv[1]](int(sys.argv[2]))
