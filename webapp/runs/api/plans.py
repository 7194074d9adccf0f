"""Plans: what a run would need and cost."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from engine.planning import to_json
from webapp.api.auth import viewer
from webapp.runs.selectors import plans
from webapp.runs.services.drafts import draft

router = Router(tags=["plans"])


class PlanIn(Schema):
    """A recipe with overrides by dotted name, GPUs and assumptions."""

    recipe: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    gpus: str | None = None
    """``COUNTxNAME``; null: as many H100 as the run needs."""
    assumptions: dict[str, Any] = Field(default_factory=dict)


@router.post("/plans", auth=viewer, response=dict[str, Any])
def plan(request: HttpRequest, body: PlanIn) -> dict[str, Any]:
    """Return memory, time and sandboxes of a run, as ``trainyard plan --json`` prints them."""
    config = draft(recipe=body.recipe, overrides=body.overrides).resolved()
    return to_json(plans.plan(config, gpus=body.gpus, assumptions=body.assumptions))
