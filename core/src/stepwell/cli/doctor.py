"""`stepwell doctor CONFIG`: whether it can run, said before anything is built."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from stepwell.cli import COMMANDS
from stepwell.cli.offered import clashes
from stepwell.cli.options import read_config, set_option
from stepwell.cli.probe import Answer, survey
from stepwell.config import Config
from stepwell.engine.ranks.start import judge as judge_ranks
from stepwell.errors import ConfigError
from stepwell.offers import Finding
from stepwell.plugins import Registry
from stepwell.records import FAILED, MISSING, Record
from stepwell.resolve import resolve
from stepwell.route.choose import check_shared

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Line:
    """One finding; `detail` is a traceback."""

    level: str
    text: str
    detail: str = ""


@click.command()
@click.argument("path", metavar="[CONFIG]", required=False)
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.option("-v", "--verbose", is_flag=True, help="Print the traceback of each plugin, or kit, that failed.")
@click.option("--strict", is_flag=True, help="A plugin that failed is a failure even where CONFIG does not need it.")
@click.option("--conform", "offer", metavar="NAME", help="Run the conformance kit on an installed offer instead.")
@click.option("--kind", metavar="KIND", help="With --conform: which offer, where several have that name.")
def doctor(
    path: str | None,
    sets: tuple[str, ...],
    as_json: bool,
    verbose: bool,
    strict: bool,
    offer: str | None,
    kind: str | None,
) -> None:
    """Say whether CONFIG can run, and what to mend; exit status 1 if it cannot.

    Plugins are imported, and their checks run, in a process apart.

    With --conform NAME: whether an offer keeps its contract, with its settings from CONFIG and --set. A `path` that is
    not set is a folder of its own, gone afterwards; pages written elsewhere are deleted.
    """
    if offer is not None:
        from stepwell.cli.conform import conform

        conform(offer, kind or "", path, sets, as_json, verbose)
        return
    if kind is not None:
        raise click.UsageError("--kind says which offer --conform NAME means.")
    if path is None:
        raise click.UsageError("Missing argument 'CONFIG'.")
    config = read_config(None)
    try:
        read_config(path, sets)
    except ConfigError as error:
        report([Line(FAIL, str(error))], [], as_json, verbose)
        sys.exit(1)
    records, answer = survey("stepwell.cli.doctor:judge", {"config": path, "sets": sets}, config)
    level = FAIL if strict else WARN
    failed = [Line(level, record.sentence, record.traceback) for record in records if record.state in FAILED]
    absent = [Line(WARN, record.sentence) for record in records if record.state == MISSING]
    lines = [*failed, *absent, *(Line(**line) for line in answer["lines"])]
    report(lines, records, as_json, verbose)
    if any(line.level == FAIL for line in lines):
        sys.exit(1)


def report(lines: Sequence[Line], records: Sequence[Record], as_json: bool, verbose: bool) -> None:
    """Print what was found."""
    if as_json:
        fine = all(line.level != FAIL for line in lines)
        found = {"runs": fine, "findings": [asdict(x) for x in lines], "plugins": [asdict(x) for x in records]}
        click.echo(json.dumps(found, indent=2))
        return
    for line in lines:
        mark = line.level.upper() if line.level == FAIL else line.level
        click.echo(f"{mark.ljust(6)}{line.text}")
        if verbose and line.detail:
            click.echo(line.detail.rstrip())


def judge(config: Config, registry: Registry, request: Answer) -> Answer:
    """The part that needs plugins in the process: bind every section, choose every offer, run every check."""
    del request
    lines: list[Line] = []
    used: set[str] = set()
    try:
        resolved = resolve(config, registry)
        config.finish(registry)
        chosen = resolved.chosen
        if resolved.ranks.tp > 1:
            judge_ranks(chosen["runner"], resolved.ranks)
        if resolved.ranks.dp > 1:
            check_shared(config, chosen.get("storage"), f"{resolved.ranks.dp} groups", "set ranks.dp = 1")
    except ConfigError as error:
        lines.append(Line(FAIL, str(error)))
    else:
        for section, choice in chosen.items():
            owner = registry.owner(choice.offer)
            used.add(owner.name)
            lines.append(Line(OK, f"{section}.use = {choice.offer.name!r} ({choice.origin}): {owner.label}"))
    lines += [Line(WARN, note) for note in config.notes]
    lines += _checks(registry, used)
    offered, failed = registry.commands()
    lines += [Line(WARN, record.sentence, record.traceback) for record in failed]
    lines += [Line(WARN, text) for text in clashes(offered, tuple(COMMANDS))]
    return {"lines": [asdict(line) for line in lines]}


def _checks(registry: Registry, used: set[str]) -> list[Line]:
    checks, failed = registry.checks()
    lines = [Line(WARN, record.sentence, record.traceback) for record in failed]
    for record, check in checks:
        try:
            finding = check.run()
        except Exception as error:
            finding = Finding(FAIL, f"the check itself failed: {type(error).__name__}: {error}")
        # What this config does not use cannot keep it from running.
        level = WARN if finding.level == FAIL and record.name not in used else finding.level
        lines.append(Line(level, f"{record.name} {check.name}: {finding.text}"))
    return lines
