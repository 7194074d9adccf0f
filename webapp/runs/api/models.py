"""Models that can be fetched, policy folders with a card, and tries of them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from webapp.api.auth import caller, operator, viewer
from webapp.runs.api.runs import RunOut
from webapp.runs.contexts.tries import find_tries
from webapp.runs.models.runs import Run
from webapp.runs.selectors.policies import KnownModel, list_models
from webapp.runs.services import tries

router = Router(tags=["models"])


class ModelOut(Schema):
    """A model that can be fetched, or a policy folder that has a card."""

    name: str
    """Value of ``policy.checkpoint`` once it is fetched."""
    model: str
    """Origin: ``OWNER/NAME`` of the Hugging Face Hub; empty where it is unknown."""
    licence: str
    quantisation: str
    is_fetched: bool
    download_bytes: int | None
    """Null for folders that are in no catalogue."""


class TryIn(Schema):
    """A model to try; overrides are those of the recipe ``try-model``."""

    checkpoint: str
    overrides: dict[str, Any] = Field(default_factory=dict)


class TryOut(Schema):
    """A try of a model in one tool format; figures are null until it has ended."""

    run_id: int
    state: str
    tool_format: str
    responses: int | None
    call_rate: float | None
    """Share of responses that held a call in the format, valid or not."""
    valid_rate: float | None
    """Share of responses with exactly one call that fits its tool."""
    cut_rate: float | None
    """Share of responses that were cut off."""
    mean_tokens: float | None
    """Tokens of a response."""
    tokens_per_s: float | None
    """Sampled tokens of all rollouts, per second of sampling."""
    peak_memory: float | None
    """Bytes of the run's process."""
    advice: str


@router.get("/models", auth=viewer, response=list[ModelOut])
def get_models(request: HttpRequest) -> list[KnownModel]:
    """List the models that can be fetched, and the policy folders of the data folder that have a card."""
    return list_models()


@router.post("/models/try", auth=operator, response={201: list[RunOut]})
def try_model(request: HttpRequest, body: TryIn) -> tuple[int, list[Run]]:
    """Queue short collections of a model on a few tasks, one in each tool format."""
    overrides = {**body.overrides, "policy.checkpoint": body.checkpoint}
    return 201, tries.start(overrides=overrides, actor=caller(request))


@router.get("/models/tries", auth=viewer, response=list[TryOut])
def get_tries(request: HttpRequest, checkpoint: str, prompt: str = "") -> list[dict[str, Any]]:
    """Return the newest tries of a checkpoint with a prompt, one for each tool format."""
    return [row.record() for row in find_tries(checkpoint, prompt).rows]
