"""Models page: cards of models and policy folders, and the newest tries."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.core.contexts.frame import Crumb
from webapp.runs.contexts.policy_label import policy_label
from webapp.runs.contexts.tries import TryView, views_of
from webapp.runs.selectors.policies import KnownModel, list_models
from webapp.runs.selectors.tries import recent_tries


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedModel:
    """A try with the names of its model and prompt."""

    model: str
    prompt: str
    result: TryView


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsContext:
    """Models page."""

    section: str
    crumbs: tuple[Crumb, ...]
    models: tuple[KnownModel, ...]
    tries: tuple[TriedModel, ...]
    has_active_tries: bool
    """Whether a try is waiting or running."""


def build_models() -> ModelsContext:
    """Return the page."""
    runs = recent_tries()
    results = views_of(runs)
    return ModelsContext(
        section="runs",
        crumbs=(Crumb("Models"),),
        models=tuple(list_models()),
        tries=tuple(
            TriedModel(
                model=policy_label(run.config["policy"]).rsplit("/", 1)[-1],
                prompt=run.config["agent"]["prompt"],
                result=result,
            )
            for run, result in zip(runs, results, strict=True)
        ),
        has_active_tries=any(result.is_active for result in results),
    )
