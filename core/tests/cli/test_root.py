"""The root of the command line: help from a table, names that core lacks from plugins, errors as sentences."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from stepwell import __version__
from stepwell.cli import COMMANDS, root
from stepwell.cli.bench import bench
from stepwell.cli.lazy import Lazy

from .conftest import Shell

COMMAND = """
import click
from stepwell import hookimpl

@click.command()
@click.argument("word", default="nothing")
def {name}(word):
    click.echo(f"{{__name__}} {name} says {{word}}")

@hookimpl
def stepwell_commands():
    return [{name}]
"""

BAD = {
    "bad1": "raise ImportError('no such library')",
    "bad2": "from stepwell import hookimpl\n@hookimpl\ndef stepwell_storages(wrong): return ()",
    "bad3": "from stepwell import hookimpl\n@hookimpl\ndef stepwell_storages(): raise OSError('lost')",
    "bad4": "import sys; sys.exit(7)",
}


@pytest.mark.parametrize("lazy", [*COMMANDS.values(), *bench.table.values()], ids=lambda lazy: lazy.target)
def test_b152_every_command_of_the_table_is_there_and_has_help(lazy: Lazy) -> None:
    command = lazy.load()
    assert lazy.help.endswith(".")
    assert command.help


def test_b152_names_in_the_table_are_the_commands_own() -> None:
    for name, lazy in COMMANDS.items():
        assert lazy.load().name == name


PROBE = """
import sys, time
from stepwell.cli import root
try:
    root({arguments!r}, prog_name="stepwell")
except SystemExit:
    pass
print(*sorted(sys.modules), sep="\\n", file=sys.stderr)
print(time.process_time(), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["--bad"], ["plugin", "--help"], ["bench", "--help"]])
def test_b152_help_is_quick_and_imports_no_plugin_and_no_torch(shell: Shell, arguments: list[str]) -> None:
    for number in range(20):
        shell.install(f"p{number}", "import torch\nraise SystemExit('imported')")
    best = 9.0
    for _ in range(3):
        script = f"import sys; sys.path[:0] = {shell._paths!r}\n" + PROBE.format(arguments=arguments)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        *modules, seconds = done.stderr.splitlines()
        best = min(best, float(seconds))
    heavy = [name for name in modules if name.split(".")[0] in ("torch", "transformers", "uvicorn", "rich", "zmq")]
    assert heavy == []
    assert [name for name in modules if name.startswith(("stepwell_p", "stepwell_server", "stepwell_file"))] == []
    assert best < 0.5, f"{best:.2f} s of processor time"


def test_b152_completion_imports_no_command(shell: Shell) -> None:
    before = set(sys.modules)
    offered = ShellComplete(root, {}, "stepwell", "_STEPWELL_COMPLETE").get_completions([], "plug")
    assert [(item.value, item.help) for item in offered] == [
        ("plugins", COMMANDS["plugins"].help),
        ("plugin", COMMANDS["plugin"].help),
    ]
    assert not {name for name in set(sys.modules) - before if name.startswith("stepwell.cli.plug")}


def test_help_lists_plugins_by_their_summaries(shell: Shell) -> None:
    shell.install("trap", "raise SystemExit('imported')")
    assert "\nPlugins:\n" in shell.run("--help").out
    assert "  trap" in shell.run("--help").out


def test_version(shell: Shell) -> None:
    assert shell.run("--version").out == f"stepwell {__version__}\n"


def test_b140_help_list_and_commands_work_among_broken_plugins(shell: Shell) -> None:
    shell.install("good1", COMMAND.format(name="first"))
    for name, source in BAD.items():
        shell.install(name, source)
    shell.install("good2", COMMAND.format(name="second"))
    assert shell.process("--help").code == 0
    listed = shell.process("plugins")
    assert listed.code == 0
    lines = [" ".join(line.split()) for line in listed.out.splitlines() if not line.startswith("disabled")]
    rows = {line.split()[1]: line for line in lines}
    assert list(rows) == ["bad1", "bad2", "bad3", "bad4", "builtin", "good1", "good2"]
    assert [rows[name].split()[0] for name in rows] == ["broken", "invalid", "broken", "broken", "ok", "ok", "ok"]
    assert "stepwell-bad1 1.0 import stepwell_bad1: ImportError: no such library" in rows["bad1"]
    assert "SystemExit: 7" in rows["bad4"]
    assert shell.process("first", "a").out == "stepwell_good1 first says a\n"
    assert shell.process("second").out == "stepwell_good2 second says nothing\n"


def test_commands_of_others_appear_under_the_plugins_name(shell: Shell) -> None:
    shell.install("theirs", COMMAND.format(name="act"), distribution="somebodys")
    assert shell.run("theirs", "act", "x").out == "somebodys act says x\n"
    assert "Commands of theirs (somebodys 1.0)." in shell.run("theirs", "--help").out
    at_root = shell.run("act")
    assert (at_root.code, at_root.out) == (2, "")
    assert at_root.err.startswith("Error: no such command act; ")


def test_our_own_commands_appear_at_the_root_and_under_the_name(shell: Shell) -> None:
    shell.install("ours", COMMAND.format(name="act"))
    assert shell.run("act", "x").out == shell.run("ours", "act", "x").out == "stepwell_ours act says x\n"


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_b149_a_command_that_two_offer_names_both(shell: Shell, order: tuple[str, str]) -> None:
    for name in order:
        shell.install(name, COMMAND.format(name="act"))
    ran = shell.run("act")
    assert ran.code == 2
    assert ran.err == (
        "Error: command act: one (stepwell-one 1.0) and two (stepwell-two 1.0) both offer it; "
        "switch one off with `stepwell plugin disable`\n"
    )
    assert shell.run("two", "act").out == "stepwell_two act says nothing\n"


def test_b149_a_built_in_name_is_cores(shell: Shell) -> None:
    shell.install("thief", COMMAND.format(name="plugins"))
    assert "thief" in shell.run("plugins").out
    assert shell.run("thief", "plugins").out == "stepwell_thief plugins says nothing\n"
    shell.install("doctor", COMMAND.format(name="act"))
    found = shell.run("doctor", "--set", "runner.use=sim", "site.toml")
    assert found.code == 1, "there is no such file"


def test_b149_doctor_names_hidden_commands(shell: Shell) -> None:
    shell.install("thief", COMMAND.format(name="plugins"))
    shell.install("new", COMMAND.format(name="act"))
    shell.install("other", COMMAND.format(name="act"))
    with open("site.toml", "w") as file:  # noqa: PTH123 - the shortest way
        file.write("[runner]\nuse = 'sim'\n")
    found = shell.run("doctor", "site.toml")
    assert found.code == 0
    assert "warn  command plugins of thief (stepwell-thief 1.0) is core's own name; use `stepwell thief plugins`" in (
        found.out
    )
    assert "warn  command act is offered by new (stepwell-new 1.0) and other (stepwell-other 1.0); switch one off" in (
        found.out
    )
    assert "warn  commands of new (stepwell-new 1.0) are hidden: new is core's own" in found.out


def test_b148_an_unknown_command_is_blamed_on_the_plugin_that_failed(shell: Shell) -> None:
    shell.install("extra", "import no_such_library")
    ran = shell.run("extra")
    assert ran.code == 2
    assert "; plugin extra (stepwell-extra 1.0) is broken: import stepwell_extra: Mod" in ran.err
    shell.install("late", "from stepwell import hookimpl\n@hookimpl\ndef stepwell_commands(): 1 / 0")
    assert "plugin late (stepwell-late 1.0) is broken: stepwell_commands: ZeroDivisionError" in shell.run("late").err


def test_measurements_of_plugins_stand_beside_core_s_own(shell: Shell) -> None:
    code = COMMAND.format(name="speed").replace("stepwell_commands", "stepwell_benches")
    shell.install("fast", code)
    assert shell.run("bench", "speed", "x").out == "stepwell_fast speed says x\n"
    assert "speed" in shell.run("bench", "more").out
    assert shell.run("bench", "spee").err.startswith("Error: no such measurement spee; did you mean speed")
    shell.install("faster", code)
    assert shell.run("bench", "speed").err.startswith("Error: bench speed: fast (stepwell-fast 1.0) and faster")
    shell.install("late", "from stepwell import hookimpl\n@hookimpl\ndef stepwell_benches(): 1 / 0")
    assert "plugin late (stepwell-late 1.0) is broken: stepwell_benches: Zero" in shell.run("bench", "no").err


def test_a_misspelt_command_gets_a_suggestion(shell: Shell) -> None:
    assert shell.run("docter").err.startswith("Error: no such command docter; did you mean doctor")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["config", "show", "gone.toml"], "gone.toml: cannot read this config file: No such file or directory"),
        (["config", "show", ""], "the path of the config file is empty; is the variable that holds it set?"),
        (["config", "show", "--set", "x"], "--set x: write it as section.key=value"),
        (["plugin", "disable", "nobody"], "nobody: no such plugin is installed"),
        (["new", "storage", "Bad Name"], "'Bad Name' is no name for a plugin"),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(shell: Shell, arguments: list[str], text: str) -> None:
    ran = shell.process(*arguments)
    assert ran.code == 2
    assert ran.err.startswith(f"Error: {text}")
    assert "Traceback" not in ran.err


def flags(command: click.Command, ctx: click.Context, path: str = "") -> list[tuple[str, click.Option]]:
    """Every flag of every command."""
    if isinstance(command, click.Group):
        inner = [(name, command.get_command(ctx, name)) for name in command.list_commands(ctx)]
        return [flag for name, one in inner if one for flag in flags(one, ctx, f"{path} {name}")]
    return [(path, p) for p in command.params if isinstance(p, click.Option) and p.is_flag]


def test_b151_no_flag_is_the_negation_of_a_setting_that_is_on() -> None:
    """A flag turns on what is off; what is on by default has both names, and they set one parameter."""
    found = flags(root, click.Context(root))
    assert found
    for path, option in found:
        if option.name in ("help", "version"):
            continue
        on = option.secondary_opts or option.default in (False, None) or option.flag_value is not True
        assert on, f"{path} {option.opts}"
        assert not any(name.startswith(("--no-", "--disable-")) for name in option.opts), f"{path} {option.opts}"


def test_b151_both_names_of_a_flag_set_one_value() -> None:
    chat = next(option for path, option in flags(root, click.Context(root)) if option.secondary_opts == ["--no-chat"])
    command = click.Command("x", params=[chat], callback=lambda chat: click.echo(chat))
    run = click.testing.CliRunner().invoke
    assert [run(command, a).output for a in ([], ["--chat"], ["--no-chat"], ["--no-chat", "--chat"])] == [
        "True\n",
        "True\n",
        "False\n",
        "True\n",
    ]
