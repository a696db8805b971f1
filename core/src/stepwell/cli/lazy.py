"""A group whose help needs no command's module: names and help lines are a table, the rest is imported when typed."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from stepwell.errors import StepwellError

INTERRUPTED = 130
"""The exit status that shells know Ctrl-C by."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is (`module:name`), and its line of help."""

    target: str
    help: str

    def load(self) -> click.Command:
        """Import it."""
        module, _, name = self.target.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


class Sentence(click.ClickException):
    """A mistake of the user: one sentence, exit status 2, no traceback."""

    exit_code = 2


class LazyGroup(click.Group):
    """Commands from a table."""

    def __init__(self, name: str, table: Mapping[str, Lazy], help: str) -> None:
        super().__init__(name, help=help, no_args_is_help=True)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.table[cmd_name].load() if cmd_name in self.table else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(n, help=lazy.help) for n, lazy in self.table.items() if n.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. What it raises that is no defect ends it with a word or a sentence."""
        try:
            return super().invoke(ctx)
        except StepwellError as error:
            raise Sentence(str(error)) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise Sentence(f"what the command writes finds no room: {error}") from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
