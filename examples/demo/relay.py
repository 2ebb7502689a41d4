"""Carries the ranks' connections from the server's leg of the bridge to the server on this host."""

import contextlib
import socket
import threading


def start(listener: socket.socket, server: tuple[str, int]) -> None:
    """Accept on `listener` in the background for as long as this process lives; the relay owns `listener` then."""
    threading.Thread(target=_accept, args=(listener, server), daemon=True).start()


def _accept(listener: socket.socket, server: tuple[str, int]) -> None:
    while True:
        near, _ = listener.accept()
        threading.Thread(target=_carry_both_ways, args=(near, server), daemon=True).start()


def _carry_both_ways(near: socket.socket, server: tuple[str, int]) -> None:
    # Where the server is down or starting, the rank's agent sees a closed connection and tries again.
    with near, contextlib.suppress(OSError), socket.create_connection(server) as far:
        back = threading.Thread(target=_carry, args=(far, near), daemon=True)
        back.start()
        _carry(near, far)
        back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Copy one direction until it ends; shutting both sockets down then ends the other direction too."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
