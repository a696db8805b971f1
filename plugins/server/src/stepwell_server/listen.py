"""The listening socket. The launcher holds it, so that a front end that dies takes no connection with it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell_server.settings import ServerSettings

BACKLOG = 2048


def listen(config: Config, settings: ServerSettings) -> socket.socket:
    """A socket that accepts connections; ConfigError where it cannot be had."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise config.error("server", "host", f"{host!r} is no address of this machine") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise _sentence(config, settings, error) from None
    return listening


def exposed(listening: socket.socket) -> bool:
    """Whether other machines can reach it."""
    return not ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def url(listening: socket.socket) -> str:
    """Where clients of this machine find it."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


def _sentence(config: Config, settings: ServerSettings, error: OSError) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            text = f"{settings.port} is in use on {settings.host}; stop what uses it, or choose another with --port"
            return config.error("server", "port", text)
        case errno.EACCES:
            return config.error(
                "server", "port", f"{settings.port} needs rights that this user has not; use one above 1023"
            )
        case errno.EADDRNOTAVAIL:
            return config.error("server", "host", f"{settings.host!r} is no address of this machine")
    return config.error(
        "server", "port", f"cannot listen on {settings.host}:{settings.port}: {os.strerror(error.errno or 0)}"
    )
