"""``manage.py endpoint add|list|test|remove|rotate``: manage OpenAI-compatible endpoints and their keys."""

from __future__ import annotations

import getpass
import sys
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import ConfigError
from engine.terminal import visible_line
from webapp.endpoints import selectors as reads
from webapp.endpoints.models import Endpoint
from webapp.endpoints.services import endpoints
from webapp.endpoints.services.probe import probe
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Manage endpoints."""

    help = "Manage the OpenAI-compatible endpoints that runs may use."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add one sub-command per action."""
        actions = parser.add_subparsers(dest="action", required=True)
        add = actions.add_parser(
            "add", help="create an endpoint or change it; the key is read from standard input or a prompt"
        )
        add.add_argument("name")
        add.add_argument("address", help="base URL of the API, e.g. https://api.example.org/v1")
        add.add_argument("--note", default="")
        add.add_argument(
            "--models", default="", help="models that runs may use, separated by commas, * for any text"
        )
        add.add_argument(
            "--attachable", action="store_true", help="a vLLM server whose weights runs may replace"
        )
        key = add.add_mutually_exclusive_group()
        key.add_argument("--no-key", action="store_true", help="the address needs no key")
        key.add_argument("--keep-key", action="store_true", help="keep the stored key")
        actions.add_parser("list", help="list the endpoints without their keys")
        for name, text in (("test", "request its list of models"), ("remove", "remove it with its key")):
            actions.add_parser(name, help=text).add_argument("name")
        actions.add_parser("rotate", help="encrypt the stored keys under a new sealing key")

    def handle(self, **options: Any) -> None:
        """Carry out the action."""
        try:
            getattr(self, f"_{options['action']}")(options)
        except ConfigError as error:
            raise CommandError(str(error)) from None

    def _add(self, options: dict[str, Any]) -> None:
        key = None if options["keep_key"] else "" if options["no_key"] else _read_key()
        endpoint = endpoints.save(
            name=options["name"],
            address=options["address"],
            note=options["note"],
            models=options["models"],
            attachable=options["attachable"],
            key=key,
        )
        self.stdout.write(f"endpoint {endpoint.name} was saved")

    def _list(self, _options: dict[str, Any]) -> None:
        for row in reads.list_endpoints():
            key = f"key …{row.key_hint} of {row.key_set_at:%Y-%m-%d}" if row.key_set_at else "no key"
            attachable = "attachable" if row.attachable else ""
            parts = (row.name, row.address, key, row.allowed_models, attachable)
            self.stdout.write(visible_line("  ".join(filter(None, parts))))

    def _test(self, options: dict[str, Any]) -> None:
        result = probe(endpoint=_find(options["name"]))
        if result.error:
            raise CommandError(result.error)
        self.stdout.write("\n".join(map(visible_line, result.models)))

    def _remove(self, options: dict[str, Any]) -> None:
        endpoints.remove(endpoint=_find(options["name"]))
        self.stdout.write(f"endpoint {options['name']} was removed")

    def _rotate(self, _options: dict[str, Any]) -> None:
        self.stdout.write(f"{endpoints.rotate()} keys were encrypted anew")


def _read_key() -> str:
    """Read the key without echo from a terminal, else from standard input."""
    key = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.read()
    if not key.strip():
        raise CommandError("no key was given: type it, send it to standard input, or use --no-key")
    return key.strip()


def _find(name: str) -> Endpoint:
    endpoint = reads.get_endpoint(name)
    if endpoint is None:
        raise CommandError(f"there is no endpoint '{name}'")
    return endpoint
