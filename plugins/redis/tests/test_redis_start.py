"""Settings, logins, TLS, and servers that cannot be used."""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepwell import ConfigError
from stepwell.coerce import Secret
from stepwell.config import Config
from stepwell_redis import RedisConfig
from stepwell_redis.store import RedisStorage
from stepwell_testkit.bench import Bench
from stepwell_testkit.server import Server, free_port, need_program

Serve = Callable[..., Server]
Open = Callable[..., RedisStorage]
PAGE = 64 * 1024
WORD = "a-very-secret-word"


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """Takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def works(store: RedisStorage, page: int = PAGE) -> None:
    bench = Bench(store, page, 8)
    bench.put(range(8))
    bench.gets(range(8))
    store.delete(bench.keys(range(8)))
    bench.lacks(range(8))


# --- servers that cannot be used --------------------------------------------------------------------------------------


def test_no_server_is_one_sentence_at_once(opened: Open) -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(ConfigError, match=rf"storage.url: no Redis answers at 127.0.0.1:{port} .*start it"):
        opened(port)
    assert time.monotonic() - began < 2


def test_a_server_that_says_nothing_is_given_up_soon(opened: Open, deaf: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"storage.url: no Redis answers .*Timeout"):
        opened(deaf.getsockname()[1], timeout_s=60.0)
    assert time.monotonic() - began < 5


def test_a_frozen_server_is_given_up_soon(opened: Open, serve: Serve) -> None:
    server = serve()
    server.freeze()
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"storage\.url"):
        opened(server.port, timeout_s=60.0)
    assert time.monotonic() - began < 5
    server.thaw()


TALK = {
    "trickle": (b"x", 0.2),
    "endless": (b"$999999999999\r\n" + bytes(4096), 0.0),
    "noise": (bytes(range(256)), 0.0),
    "numbers": (b":1\r\n", 0.01),
}


@pytest.fixture
def talker() -> Iterator[Callable[[str], int]]:
    """Starts servers that say the same again and again, whatever they are asked; their ports."""
    over = threading.Event()
    listening: list[socket.socket] = []

    def talk(to: socket.socket, what: bytes, pause_s: float) -> None:
        with to, suppress(OSError):
            while not over.is_set():
                to.sendall(what)
                time.sleep(pause_s)

    def serve(at: socket.socket, kind: str) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(at.accept()[0], *TALK[kind]), daemon=True).start()

    def start(kind: str) -> int:
        listening.append(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=serve, args=(listening[-1], kind), daemon=True).start()
        return int(listening[-1].getsockname()[1])

    yield start
    over.set()
    for one in listening:
        one.close()


@pytest.mark.parametrize("kind", TALK)
def test_a_server_that_talks_without_end_is_given_up_soon(
    opened: Open, talker: Callable[[str], int], kind: str
) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"storage.url: ") as refused:
        opened(talker(kind), timeout_s=60.0)
    assert time.monotonic() - began < 5 and len(str(refused.value)) < 300 and "\n" not in str(refused.value)


def test_files_that_are_not_there_are_named(opened: Open) -> None:
    with pytest.raises(ConfigError, match=r"storage.tls_ca: /none.pem cannot be read \(No such file"):
        opened(url="rediss://127.0.0.1:1/0", tls_ca=Path("/none.pem"))


def test_a_socket_that_is_not_there(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage.url: no Redis answers at .*/none.sock"):
        opened(url=f"unix://{tmp_path}/none.sock")


def test_another_kind_of_server(opened: Open) -> None:
    import http.server

    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            with pytest.raises(ConfigError, match=r"storage.url: "):
                opened(web.server_port)
        finally:
            web.shutdown()
            thread.join()


def test_a_database_that_is_not_there(opened: Open, serve: Serve) -> None:
    port = serve("--databases", "2").port
    works(opened(url=f"redis://127.0.0.1:{port}/1"))
    with pytest.raises(ConfigError, match=r"storage.url: .*database"):
        opened(url=f"redis://127.0.0.1:{port}/7")


def test_a_cluster_is_refused(opened: Open, serve: Serve) -> None:
    with pytest.raises(ConfigError, match=r"storage.url: .*cluster mode"):
        opened(serve("--cluster-enabled", "yes", "--cluster-port", str(free_port())).port)


# --- logins -----------------------------------------------------------------------------------------------------------


def test_a_password_is_needed_and_never_shown(opened: Open, serve: Serve) -> None:
    port = serve("--requirepass", WORD).port
    works(opened(port, password=Secret(WORD)))
    for settings in ({}, {"password": Secret("another-secret-word")}):
        with pytest.raises(ConfigError, match=r"storage.password: the server at 127.0.0.1") as refused:
            opened(port, **settings)
        assert "secret" not in str(refused.value)
    assert WORD not in repr(RedisConfig(f"redis://127.0.0.1:{port}", password=Secret(WORD)))


def test_a_user_that_may_do_only_what_is_needed(opened: Open, serve: Serve) -> None:
    rules = f"stepwell on >{WORD} ~stepwell/* -@all +mget +set +exists +unlink +scan +strlen"
    port = serve("--user", *rules.split()).port
    works(opened(port, username="stepwell", password=Secret(WORD)))
    with pytest.raises(ConfigError, match=r"storage.password: .*prefix|storage.password: .*perm"):
        opened(port, username="stepwell", password=Secret(WORD), prefix="others/")


def test_an_address_with_a_password_must_be_a_secret(opened: Open, serve: Serve) -> None:
    port = serve("--requirepass", WORD).port
    url = f"redis://default:{WORD}@127.0.0.1:{port}/0"
    with pytest.raises(ValueError, match="url: holds a password") as refused:
        RedisConfig(url)
    assert WORD not in str(refused.value)
    works(opened(url=Secret(url)))
    with pytest.raises(ConfigError) as refused_:
        opened(url=Secret(url.replace(WORD, "other-word")))
    assert "other-word" not in str(refused_.value)


def test_a_config_takes_secrets_by_reference(tmp_path: Path) -> None:
    path = tmp_path / "stepwell.toml"
    path.write_text('[storage]\nuse = "redis"\nurl = "redis://h"\npassword = { env = "REDIS_WORD" }\n')
    config = Config.load(path, {"REDIS_WORD": WORD})
    bound = config.bind("storage", RedisConfig)
    assert bound.password == WORD
    assert WORD not in repr(bound)
    assert WORD not in str(config.shown())


# --- ways to a server -------------------------------------------------------------------------------------------------


def test_a_unix_socket(opened: Open, serve: Serve, tmp_path: Path) -> None:
    serve("--unixsocket", str(tmp_path / "redis.sock"))
    for page in (512, PAGE, 1 << 20):
        works(opened(url=f"unix://{tmp_path}/redis.sock?db=3"), page)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    openssl = need_program("openssl")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    keys = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = [openssl, "req", "-x509", *keys, "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", *subject]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    return tmp_path


def test_tls_with_certificates_of_both_sides(opened: Open, serve: Serve, certificates: Path) -> None:
    port = free_port()
    cert, key = str(certificates / "cert.pem"), str(certificates / "key.pem")
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    server = serve("--tls-port", str(port), *files)
    ways = {"tls_ca": Path(cert), "tls_cert": Path(cert), "tls_key": Path(key)}
    for page in (512, PAGE, 1 << 20):
        works(opened(url=f"rediss://127.0.0.1:{port}/0", **ways), page)
    with pytest.raises(ConfigError, match=r"storage.url: .*CERTIFICATE_VERIFY_FAILED"):
        opened(url=f"rediss://127.0.0.1:{port}/0")
    with pytest.raises(ConfigError, match=r"storage.url: "):
        opened(url=f"rediss://127.0.0.1:{server.port}/0", **ways)


# --- settings that make no sense --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": "http://h"}, "url: must start with"),
        ({"url": "h:6379"}, "url: must start with"),
        ({"url": "redis://h?socket_timeout=100"}, "url: takes no option"),
        ({"prefix": ""}, "prefix: is empty"),
        ({"url": "redis://h:port/0"}, "url: is no address"),
        ({"url": "redis://h:99999/0"}, "url: is no address"),
        ({"url": "redis://[::1/0"}, "url: is no address"),
        ({"url": "redis://h/first"}, "url: the database 'first' is no number"),
        ({"url": "redis://h?db=x"}, "url: the database 'x' is no number"),
        ({"url": "redis://h?db=-1"}, "url: the database '-1' is no number"),
        ({"url": "unix://"}, "url: names no socket"),
        ({"ttl_s": -1.0}, "ttl_s"),
        ({"ttl_s": float("inf")}, "ttl_s"),
        ({"ttl_s": 1e300}, "ttl_s"),
        ({"connections": 10**8}, "connections"),
        ({"refresh_on_read": True}, "refresh_on_read"),
        ({"connections": 0}, "connections"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"tls_ca": Path("x")}, "tls_ca: is for rediss"),
        ({"url": "rediss://h", "tls_cert": Path("x")}, "tls_cert: goes together"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RedisConfig(**({"url": "redis://h"} | settings))  # type: ignore[arg-type]
