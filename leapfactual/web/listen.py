"""A socket that listens, or a sentence about why it cannot."""

import os
import socket

from ..errors import InputError


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be listened on ({_reason(error)}). Give another --port or "
            "--host."
        ) from error


def _reason(error: OSError) -> str:
    return str(error) if error.errno is None or error.errno < 0 else os.strerror(error.errno)
