"""What no single package can check: all plugins side by side, no hook on the serving thread, the public surface."""

import inspect
import json
import threading
import tomllib
from collections import Counter
from pathlib import Path

import stepwell
from stepwell import hookspecs
from stepwell.config import Config
from stepwell.plugins import load

ROOT = Path(__file__).resolve().parents[1]
SURFACE = ROOT / "tests" / "api_v1.txt"


def test_every_distribution_of_the_workspace_is_fine_beside_the_others():
    ours = [record for record in load().records if record.distribution.startswith("stepwell")]
    # What a plugin offers may need a library that only some machines have.
    assert {record.state for record in ours} <= {"ok", "unusable"}, [(r.name, r.state, r.reason) for r in ours]
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("plugins/*/pyproject.toml")]
    plugins = {name for project in projects for name in project.get("entry-points", {}).get("stepwell.v1", {})}
    assert plugins | {"builtin"} <= {record.name for record in ours}


def test_no_hook_is_called_on_the_serving_thread(no_hooks, tmp_path):
    config = Config.load(None, {}, (), {"runner.use": "sim", "engine.state_dir": str(tmp_path)})
    registry = config.load_plugins()
    settings = {
        "cache": {"device_pages": 20, "host_pages": 40},
        "write": "write_through",
        "evict": "slru",
        "schedule": "lpm",
        "storage": {"use": "file", "path": str(tmp_path / "pages"), "gib": 0.1},
    }
    with stepwell.Engine(runner="sim", **settings) as engine:
        engine.generate("warm up", max_tokens=2)
        prompts = [f"the same beginning for all of them, then number {number}" for number in range(20)]
        with no_hooks(registry.manager):
            answers = engine.generate(prompts, max_tokens=8)
        assert len(answers) == 20
        engine.audit()


def test_events_replayed_from_zero_give_the_cached_set(tmp_path):
    log = tmp_path / "events.jsonl"
    settings = {"cache": {"device_pages": 24, "host_pages": 30, "page_size": 4}, "write": "write_through"}
    with stepwell.Engine(runner="sim", sink={"use": "jsonl", "path": str(log)}, **settings) as engine:
        for number in range(30):
            engine.generate(f"{'shared ' * (number % 4)}prompt {number % 11}", max_tokens=6, ignore_eos=True)
        engine.drain()
        stats = engine.stats()
    held: dict[str, Counter[str]] = {"device": Counter(), "host": Counter()}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        for key in event["keys"]:
            held[event["tier"]][key] += 1 if event["event"] == "stored" else -1
            assert held[event["tier"]][key] in (0, 1), "stored twice, or removed before it was stored"
    for tier, keys in held.items():
        assert sum(keys.values()) == stats[f"{tier}_pages_tree_only.full"], tier


def test_every_hook_says_what_it_offers():
    hooks = [hook for name, hook in inspect.getmembers(hookspecs, inspect.isfunction) if name.startswith("stepwell_")]
    assert len(hooks) > 10
    assert all(inspect.getdoc(hook) for hook in hooks)


def surface() -> list[str]:
    """Every public name of `stepwell`, with its signature, methods and fields."""
    lines = []
    for name in sorted(stepwell.__all__):
        thing = getattr(stepwell, name)
        lines.append(f"{name}{_signature(thing)}")
        if inspect.isclass(thing) and thing.__module__.startswith("stepwell"):
            lines += [
                f"  {name}.{at}{_signature(member)}"
                for at, member in sorted(vars(thing).items())
                if _public(at, member)
            ]
    for name, hook in inspect.getmembers(hookspecs, inspect.isfunction):
        if name.startswith("stepwell_"):
            lines.append(f"hook {name}{inspect.signature(hook)}")
    return lines


def _public(name: str, member: object) -> bool:
    return not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))


def _signature(thing: object) -> str:
    if isinstance(thing, property) or not callable(thing):
        return ""
    try:
        return str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""


def test_the_public_surface_is_locked():
    """A change here changes the API: write it down in CHANGELOG.md, then run this file to renew the list."""
    assert surface() == SURFACE.read_text().splitlines(), "the public surface changed: python tests/test_together.py"


def test_no_thread_outlives_an_engine():
    before = set(threading.enumerate())
    with stepwell.Engine(runner="sim", cache={"device_pages": 16, "host_pages": 16}, storage="memory") as engine:
        engine.generate("hello", max_tokens=3)
    left = [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
    for thread in left:
        thread.join(5)
    assert not [thread.name for thread in left if thread.is_alive()]


if __name__ == "__main__":
    SURFACE.write_text("\n".join(surface()) + "\n")
