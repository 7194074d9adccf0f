"""Commands about model endpoints: ``endpoint add|list|test|remove|rotate``."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, at_most_one, command_group, print_json, print_result
from webapp.endpoints import selectors as reads
from webapp.endpoints.api import ProbeOut, endpoint_record
from webapp.endpoints.models import Endpoint
from webapp.endpoints.services import endpoints
from webapp.endpoints.services.probe import probe

app = command_group("Manage the OpenAI-compatible endpoints that runs may use.")
Name = Annotated[str, typer.Argument(help="Name of the endpoint.")]


@app.command()
def add(
    name: Name,
    address: Annotated[str, typer.Argument(help="Base URL of the API, e.g. https://api.example.org/v1.")],
    note: Annotated[str, typer.Option(help="Note for users.")] = "",
    models: Annotated[
        str, typer.Option(help="Models that runs may use, separated by commas, * for any text.")
    ] = "",
    attachable: Annotated[
        bool, typer.Option("--attachable", help="A vLLM server whose weights runs may replace.")
    ] = False,
    no_key: Annotated[bool, typer.Option("--no-key", help="The address needs no key.")] = False,
    keep_key: Annotated[bool, typer.Option("--keep-key", help="Keep the stored key.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create an endpoint or change it; the key is read from standard input or a prompt."""
    at_most_one(no_key=no_key, keep_key=keep_key)
    key = None if keep_key else "" if no_key else _read_key()
    endpoint = endpoints.save(
        name=name, address=address, note=note, models=models, attachable=attachable, key=key
    )
    record = endpoint_record(endpoint)
    print_result(f"endpoint {endpoint.name} was saved", record, as_json=as_json)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the endpoints without their keys."""
    rows = reads.list_endpoints()
    if as_json:
        print_json([endpoint_record(row) for row in rows])
        return
    for row in rows:
        key = f"key …{row.key_hint} of {row.key_set_at:%Y-%m-%d}" if row.key_set_at else "no key"
        attachable = "attachable" if row.attachable else ""
        parts = (row.name, row.address, key, row.allowed_models, attachable)
        print(visible_line("  ".join(filter(None, parts))))


@app.command("test")
def request_models(name: Name, as_json: AsJson = False) -> None:
    """Request an endpoint's list of models."""
    result = probe(endpoint=_find(name))
    if as_json:
        print_json(ProbeOut.from_orm(result).model_dump())
    if result.error:
        raise CommandError(result.error)
    if not as_json:
        print("\n".join(map(visible_line, result.models)))


@app.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove an endpoint with its key."""
    endpoints.remove(endpoint=_find(name))
    print_result(f"endpoint {name} was removed", {"name": name}, as_json=as_json)


@app.command()
def rotate(as_json: AsJson = False) -> None:
    """Encrypt the stored keys under a new sealing key."""
    count = endpoints.rotate()
    print_result(f"{count} keys were encrypted anew", {"keys": count}, as_json=as_json)


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
