"""What `stepwell serve` says of its settings at the start."""

from pathlib import Path

from stepwell.config import Config
from stepwell_server.launch import summary
from stepwell_server.settings import ServerSettings


def test_the_summary_is_plain_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "site.toml"
    file.write_text('[server]\napi_key = "sesame"\nserved_model_name = "well"\n[storage]\npath = "pages"\n')
    config = Config.load(file, {}, [], {"server.port": 0})
    config.bind("server", ServerSettings)
    config.notes.append("something was chosen")
    assert summary(config, "http://127.0.0.1:1").splitlines() == [
        "stepwell serve: http://127.0.0.1:1",
        "  storage.path              pages  site.toml:5",
        "  server.api_key            ***    site.toml:2",
        "  server.port               0      argument",
        "  server.served_model_name  well   site.toml:3",
        "  note: something was chosen",
        "  all others have their defaults; `stepwell config show` prints them",
    ]
    assert str(Path.cwd()) not in summary(config, "")
