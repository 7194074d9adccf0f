"""Reads of models: those that can be fetched, and the policy folders of the data folder that have a card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from engine.models.catalogue import CATALOGUE
from engine.reading import read_json

CARD_NAME = "provenance.json"
_MAX_FOLDERS = 200
_MAX_CARD_BYTES = 1 << 20
_MAX_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model of the catalogue, or a policy folder."""

    name: str
    """Value of ``policy.checkpoint`` once it is fetched."""
    model: str
    """Origin: ``OWNER/NAME`` of the Hugging Face Hub; empty where it is unknown."""
    licence: str
    quantisation: str
    """Type of the published weights; empty for folders whose card does not name one."""
    is_fetched: bool
    download_bytes: int | None
    """Size of the download; None for folders that are in no catalogue."""


def list_models() -> list[KnownModel]:
    """Return the models of the catalogue, then the other policy folders with a card, by name.

    Folders outside of the data folder are not searched.
    """
    folder = Path(settings.TRAINYARD_HOME) / "policies"
    names = sorted(path.parent.name for path in folder.glob(f"*/{CARD_NAME}"))
    published = {model.name for model in CATALOGUE}
    fetched = published.intersection(names)
    others = [name for name in names if name not in published][:_MAX_FOLDERS]
    models = [
        KnownModel(
            name=model.name,
            model=model.hub,
            licence=model.licence,
            quantisation=model.quantisation,
            is_fetched=model.name in fetched,
            download_bytes=model.num_bytes,
        )
        for model in CATALOGUE
    ]
    texts = ("model", "licence", "quantisation")
    return models + [
        KnownModel(
            name=name,
            is_fetched=True,
            download_bytes=None,
            **{key: str(card.get(key, ""))[:_MAX_CHARS] for key in texts},
        )
        for name, card in ((name, _card(folder / name / CARD_NAME)) for name in others)
    ]


def _card(path: Path) -> dict[str, Any]:
    """Return a policy folder's card; empty where it is unreadable."""
    try:
        card = read_json(path, _MAX_CARD_BYTES)
    except (OSError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}
