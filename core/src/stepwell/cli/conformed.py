"""The child of `stepwell doctor --conform`: finds the offer, binds its settings and runs its kit.

It reads a request from stdin and tells what happens line by line in the file that the request names: what it tests may
print what it likes, and may end the process at any time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from stepwell.config import AUTO, DEFAULT, Config, environment
from stepwell.engine.making import Place
from stepwell.engine.supervise import die_with
from stepwell.errors import ConfigError, StepwellError
from stepwell.offers import Offer, provided
from stepwell.plugins import KINDS, Registry
from stepwell.settings import INSIDE
from stepwell.suggest import meant

KITS = "stepwell_testkit"
NAMES = 8
"""Most names that a message lists where they are of all kinds."""


def main() -> None:
    """Be the child: find the offer, bind its settings, run its kit."""
    request = json.load(sys.stdin)
    die_with(request["parent"])  # what it tests may never end
    sys.path[:] = request["path"]
    with Path(request["told"]).open("a", buffering=1) as told:

        def tell(line: dict[str, Any]) -> None:
            told.write(json.dumps(line) + "\n")

        try:
            tell({"ended": _kit(request, tell)})
        except ConfigError as error:
            tell({"error": str(error)})
            sys.exit(2)


def _kit(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> int:
    kits = import_module(f"{KITS}.conform")
    path, sets = request["config"], request["sets"]
    config = Config.load(None if path is None else Path(path), environment(), sets)
    registry = config.load_plugins()
    kind = _kind(request["name"], request["kind"], tuple(kits.TEXTS), registry)
    offer, settings = _chosen(config, registry, kind, request["name"], path, sets, Path(request["folder"]))
    if kind == "storage":
        _once(offer, settings, Path(request["folder"]))
    claims = sorted(flag.value for flag in kits.tested(offer))
    tell({"kind": kind, "owner": registry.owner(registry.offer(kind, offer.name)).label, "capabilities": claims})

    def report(verdict: Any) -> None:
        tell({"test": verdict.test, "outcome": verdict.outcome, "why": verdict.why})

    return int(kits.conform(kind, offer, settings, Path(request["folder"]), report=report))


def _once(offer: Offer[Any], settings: Callable[[Path], object], folder: Path) -> None:
    """Make a storage before its kit does: what it lacks is one sentence then, not one for every test."""
    where = folder / "once"
    where.mkdir()
    try:
        offer.make(settings(where), Place(offer.name, "cpu", lambda: where)).close()
    except StepwellError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # the kit tells of it, test by test


def _kind(name: str, asked: str, kits: Sequence[str], registry: Registry) -> str:
    """The kind of the offer of that name; ConfigError where there is none, or more than one."""
    if asked and asked not in kits:
        what = "no such kind" if asked not in KINDS else "there is no kit for it"
        raise ConfigError(f"--kind {asked}: {what}{meant(asked, kits)}")
    offered = [kind for kind in KINDS if name in registry.offers(kind)]
    found = [asked] if asked else [kind for kind in offered if kind in kits]
    if len(found) > 1:
        raise ConfigError(f"--conform {name}: there is a {' and a '.join(found)} of that name; choose with --kind")
    if not found and offered:
        raise ConfigError(f"--conform {name}: there is no kit for a {offered[0]}; there are kits for {', '.join(kits)}")
    if not found:
        own = registry.record(name)
        if own and not own.loaded:
            raise ConfigError(f"--conform {name}: {own.sentence}")
        names = {offer for kind in kits for offer in registry.offers(kind)}
        has = meant(name, names, most=NAMES)
        raise ConfigError(f"--conform {name}: nothing installed offers it{registry.blame()}{has}")
    if why := registry.why_not(found[0], name):
        raise ConfigError(f"--conform {name}: {why}")
    return found[0]


def _chosen(
    config: Config, registry: Registry, kind: str, name: str, path: str | None, sets: Sequence[str], folder: Path
) -> tuple[Offer[Any], Callable[[Path], object]]:
    """The offer with what it can do by its settings, and those settings for a folder of each test's own."""
    if kind in INSIDE:
        return _inside(config, registry, kind, name)
    used = config.use(kind, name)
    if used not in (name, AUTO):
        origin = config.origin(kind, "use")
        raise ConfigError(f"--conform {name}: {kind}.use = {used!r} ({origin}) is another; leave it out")
    own = [one for one in _folders(registry.offer(kind, name).config) if config.origin(kind, one) is DEFAULT]
    extra = {f"{kind}.use": name, **{f"{kind}.{one}": str(folder / one) for one in own}}
    config = Config.load(None if path is None else Path(path), environment(), sets, extra)
    chosen = config.choose(kind, kind, registry, name)
    config.finish(registry)
    offer = replace(chosen.offer, provides=provided(chosen.offer, chosen.settings))

    def settings(where: Path) -> object:
        return replace(chosen.settings, **{one: where / one for one in own}) if own else chosen.settings

    return offer, settings


def _inside(config: Config, registry: Registry, kind: str, name: str) -> tuple[Offer[Any], Callable[[Path], object]]:
    """The same for an offer that a setting of another section chooses."""
    section, *at = INSIDE[kind].split(".")
    part = config.choose_inside(section, tuple(at), kind, registry, name)
    config.finish(registry)
    return replace(part.offer, provides=part.provides), lambda where: part.settings


def _folders(settings: type) -> list[str]:
    """Settings that are paths and have to be given, and `path` in any case: the kit writes nowhere else."""
    kinds = get_type_hints(settings)
    return [
        one.name
        for one in fields(settings)
        if kinds[one.name] is Path
        and (one.name == "path" or (one.default is MISSING and one.default_factory is MISSING))
    ]


if __name__ == "__main__":
    main()
