"""Taking the address to listen on, before the models are loaded."""

from __future__ import annotations

import socket


class AddressError(Exception):
    """The address cannot be listened on; says why and what would work."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening. Raises AddressError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as exc:
        raise AddressError(f"host: {host!r} is no address: {exc.strerror}; try 127.0.0.1 or 0.0.0.0") from exc
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as exc:
        listener.close()
        raise cannot_listen(host, port, exc) from exc
    return listener


def cannot_listen(host: str, port: int, exc: OSError) -> AddressError:
    """The error for ``exc`` from binding or listening."""
    return AddressError(f"cannot listen on {host} port {port}: {exc.strerror}; try another --port or --host")
