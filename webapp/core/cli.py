"""Shared parts of the command line: groups of commands, common options, output and errors.

A command prints with ``print`` and raises a ``TrainyardError``. ``webapp.cli`` escapes the output and turns
the error into a message on standard error and exit status 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from ninja.responses import NinjaJSONEncoder

from engine.errors import TrainyardError
from engine.terminal import visible_text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OnlyJson = Annotated[
    bool, typer.Option("--json", show_default=False, help="Print JSON, the only format of this command.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. seed=3; may be repeated."),
]
Number = Annotated[int, typer.Option("-n", min=1, help="Number of rows to list.")]


class CommandError(TrainyardError):
    """The command cannot do what was asked; the message says why and what to do."""


def command_group(about: str = "") -> typer.Typer:
    """Return an empty group of commands; without arguments it prints its help."""
    # Rich would print terminal sequences of its own, which the escaped streams show as text.
    return typer.Typer(
        help=about or None, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def one_of(values: Collection[str]) -> Callable[[Any], Any]:
    """Return a callback that refuses other values of an option; an empty value is no choice."""

    def check(given: str | list[str] | None) -> str | list[str] | None:
        for value in [given] if isinstance(given, str) else given or ():
            if value and value not in values:
                raise typer.BadParameter(f"{value!r} is not one of {', '.join(values)}")
        return given

    return check


def at_most_one(**flags: bool) -> None:
    """Refuse switches that exclude each other.

    Raises:
        BadParameter: more than one is on.
    """
    given = [f"--{name.replace('_', '-')}" for name, on in flags.items() if on]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other")


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as one JSON document, as the API encodes it."""
    print(json.dumps(value, indent=indent, cls=NinjaJSONEncoder))


def print_result(line: str, value: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a result as a line of text, or as one line of JSON."""
    if as_json:
        print_json(value)
    else:
        print(line)


def warn(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        CommandError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def escaped_streams() -> Iterator[None]:
    """Show active characters in standard output and errors as escapes: names and reasons may contain any."""
    with redirect_stdout(_Visible(sys.stdout)), redirect_stderr(_Visible(sys.stderr)):
        yield


class _Visible:
    """Text stream that escapes what is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible_text(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # writers of bytes would bypass the escapes
            raise AttributeError(name)
        return getattr(self._stream, name)
