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
        try:
            far = socket.create_connection(server)
        except OSError:
            # The server is down or starting; the rank's agent sees a closed connection and tries again.
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Copy one direction until it ends; then close it, and the other direction ends by itself."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
