"""Existing checkpoints of a run, with the forms of runs that start from them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from engine.config.environment import FrozenLakeConfig, SweEnvironmentConfig
from engine.config.recipes import resolve
from engine.config.recipes.quickstart import DATASET as QUICKSTART
from engine.config.run import (
    AnyRun,
    FineTuneRun,
    ImproveRun,
    JudgeTrainingRun,
    SftRun,
    TrainRun,
    parse_run_config,
)
from engine.errors import ConfigError
from webapp.runs.models.runs import Run
from webapp.runs.selectors import checkpoints as reads
from webapp.runs.selectors.checkpoints import StoredCheckpoint
from webapp.runs.services.drafts import setting_texts

_STARTS = ("policy.checkpoint", "trainer.start", "sft.start")
"""Settings that name the model to train."""
_ACTING = ("agent.", "environment.", "sandbox.", "policy.")
"""Settings of a training run that its evaluation has too."""
_OF_UPDATES = ("policy.checkpoint", "policy.vllm.transfer", "policy.vllm.in_flight")
"""Settings of a training policy that its evaluation lacks: initial weights and their updates."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint and the forms of runs that start from it, as (label, address)."""

    stored: StoredCheckpoint
    forms: tuple[tuple[str, str], ...]


def build_checkpoints(run: Run) -> tuple[tuple[CheckpointRow, ...], int]:
    """Return the newest checkpoints that exist, and the number ever saved."""
    stored, total = reads.stored_checkpoints(run)
    try:
        config = parse_run_config(run.config)
    except ConfigError:
        return tuple(CheckpointRow(checkpoint, ()) for checkpoint in stored), total
    texts = dict(setting_texts(config))
    evaluation = _evaluation(config, texts)
    start = next((name for name in _STARTS if name in texts), "")
    rows = []
    for checkpoint in stored:
        reference = reads.reference(run.pk, checkpoint.folder)
        forms = []
        if start:
            forms.append(("Train from checkpoint", _form({"clone": str(run.pk), start: reference})))
        if isinstance(config, JudgeTrainingRun):
            query = {"recipe": "verify", "policy.checkpoint": reference}
            forms.append(("Verify with checkpoint", _form(query)))
        elif evaluation:
            forms.append(("Evaluate", _form({**evaluation, "policy.checkpoint": reference})))
        rows.append(CheckpointRow(checkpoint, tuple(forms)))
    return tuple(rows), total


def _form(query: dict[str, str]) -> str:
    return f"{reverse('run-new')}?{urlencode(query)}"


def _evaluation(config: AnyRun, texts: dict[str, str]) -> dict[str, str]:
    """Return the query of a form that evaluates with a run's own settings; empty where no recipe fits."""
    if isinstance(config, FineTuneRun):
        dataset = config.trajectories.dataset
        return {"recipe": _recipe(dataset), **({"dataset.name": dataset} if dataset else {})}
    if not isinstance(config, TrainRun | ImproveRun | SftRun):
        return {}
    match config.environment:
        case FrozenLakeConfig():
            recipe = "frozenlake-evaluate"
        case SweEnvironmentConfig():
            recipe = _recipe(QUICKSTART if isinstance(config, SftRun) else config.dataset.name)
        case _:
            return {}
    wanted = {key: text for key, text in texts.items() if key.startswith(_ACTING) and key not in _OF_UPDATES}
    if isinstance(config, TrainRun | ImproveRun):
        heldout, agent = config.evaluation, config.evaluation.agent(config.agent)
        wanted |= {f"agent.{key}": text for key, text in setting_texts(agent)}
        wanted |= {"dataset.name": heldout.dataset or config.dataset.name, "dataset.split": heldout.split}
        if heldout.temperature is not None:
            wanted["policy.temperature"] = str(heldout.temperature)
    defaults = dict(setting_texts(resolve(recipe)))
    return {
        "recipe": recipe,
        **{key: text for key, text in wanted.items() if defaults.get(key, text) != text},
    }


def _recipe(dataset: str) -> str:
    """Return the default recipe of a dataset's evaluations; the quickstart has one for its small policy."""
    return "quickstart-evaluate" if dataset == QUICKSTART else "evaluate"
