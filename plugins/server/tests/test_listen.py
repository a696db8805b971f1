"""The socket that the launcher holds."""

from __future__ import annotations

import socket

import pytest

from stepwell.config import Config
from stepwell.errors import ConfigError
from stepwell_server.listen import exposed, listen, url
from stepwell_server.settings import ServerSettings


@pytest.fixture
def config():
    return Config.load(None, {})


@pytest.mark.parametrize(
    ("host", "start", "open_to_others"),
    [
        ("127.0.0.1", "http://127.0.0.1:", False),
        ("0.0.0.0", "http://127.0.0.1:", True),
        ("localhost", "http://", False),
    ],
)
def test_a_free_port_and_its_address(config, host, start, open_to_others):
    with listen(config, ServerSettings(host=host, port=0)) as listening:
        assert url(listening).startswith(start)
        assert exposed(listening) is open_to_others
        with socket.create_connection(listening.getsockname()[:2]):
            pass


def test_a_port_in_use_is_a_mistake(config):
    with listen(config, ServerSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"server.port: {port} is in use"):
            listen(config, ServerSettings(port=port))


@pytest.mark.parametrize("host", ["nowhere.invalid", "203.0.113.7", "a" * 300])
def test_an_address_that_is_not_ours_is_a_mistake(config, host):
    with pytest.raises(ConfigError, match="is no address of this machine"):
        listen(config, ServerSettings(host=host, port=0))


def test_an_inherited_socket_outlives_the_first_to_use_it(config):
    with listen(config, ServerSettings(port=0)) as held:
        first = socket.fromfd(held.fileno(), held.family, held.type)
        first.close()
        with socket.create_connection(held.getsockname()):
            held.accept()[0].close()
