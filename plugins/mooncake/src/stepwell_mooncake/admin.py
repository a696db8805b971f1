"""Names of all objects in the store, which the client cannot list but the master's admin pages can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException

from stepwell import ConfigError
from stepwell_mooncake.config import MooncakeConfig

TIMEOUT_S = 5.0
KEY_HEX = 80


def listed(config: MooncakeConfig) -> Iterator[str]:
    """The names of pages, each once, as they were when this began. ConfigError where nobody tells."""
    host, port = config.admin
    where = f"storage.metrics: pages are listed by the master's admin pages at http://{host}:{port}, and"
    remedy = "name the address that the master got as --metrics_host and --metrics_port"
    ours = re.compile(re.escape(config.prefix) + f"[0-9a-f]{{{KEY_HEX}}}")
    connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/get_all_keys")
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConfigError(f"{where} it says {answer.status} {answer.reason} to /get_all_keys; {remedy}")
        for line in answer:
            name = line.decode(errors="replace").rstrip("\r\n")
            if ours.fullmatch(name):
                yield name
    except (OSError, HTTPException) as error:
        raise ConfigError(f"{where} nobody answers there ({error or type(error).__name__}); {remedy}") from None
    finally:
        connection.close()
