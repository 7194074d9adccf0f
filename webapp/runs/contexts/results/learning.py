"""Results of supervised fine-tuning: losses, training data and checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.urls import reverse

from webapp.core.contexts.frame import run_url
from webapp.core.contexts.words import count, in_words
from webapp.runs.contexts.results.parts import Figure, Part, Reason, RunResults, count_of, number_of, prefixed
from webapp.runs.models.runs import Run
from webapp.runs.selectors import results as reads
from webapp.runs.selectors.checkpoints import newest_checkpoint
from webapp.runs.selectors.iterations import Point

_DROPPED = {
    "overlong": "longer than trainer.max_tokens", "prompt_too_long": "prompt longer than trainer.max_tokens",
    "too_long": "longer than trainer.max_tokens", "without_steps": "without steps",
}  # fmt: skip


def fine_tuning(run: Run, points: Sequence[Point]) -> RunResults:
    """Return losses, trajectories used and dropped, and the newest checkpoint."""
    if run.config.get("data") == "stream":
        return _stream(run)
    summary = run.summary
    trained, heldout = (count_of(summary, f"{name}_trajectories") for name in ("train", "heldout"))
    dropped = prefixed(summary, "dropped_")
    before, loss = (
        number_of(summary, "heldout_loss_before"),
        _loss(run, points, "loss/heldout", "heldout_loss"),
    )
    return RunResults(
        title="Trajectories",
        about=_counted(summary, (("train_samples", "samples"), ("sampled_tokens", "trained tokens"),
                                 ("cut_sequences", "truncated"))),
        figures=(
            Figure(label="Loss", value=_loss(run, points, "loss/value", "train_loss"), form="loss",
                   sub="last step"),
            Figure(label="Evaluation loss", value=loss, form="loss",
                   sub=f"{before:.3g} before training" if before is not None else "on held-out tasks"),
            Figure(label="Trajectories used", value=trained,
                   sub=f"{heldout} more held out" if heldout else ""),
        ),
        parts=(
            Part(label="trained on", css="trained", amount=trained or 0),
            Part(label="held out: evaluation loss", css="grading", amount=heldout or 0),
            Part(label="not used", css="failed", amount=sum(number for _, number in dropped)),
        )
        if trained is not None
        else (),
        reasons=tuple(
            Reason(label=f"not used: {in_words(name, _DROPPED)}", amount=number) for name, number in dropped
        ),
        links=(*_sources(run.config), *_checkpoint(run)),
    )  # fmt: skip


def _stream(run: Run) -> RunResults:
    summary = run.summary
    fixed = number_of(summary, "heldout_greedy_exact_fix")
    losses = [(name, number_of(summary, f"{name}_loss")) for name in ("answer", "prompt")]
    return RunResults(
        title="Model",
        about=_counted(summary, (("steps", "optimizer steps"), ("tokens", "tokens"), ("episodes", "episodes"),
                                 ("functions", "functions"))),
        figures=(
            *(
                Figure(label=f"Loss of {name}s", value=loss, form="loss", sub="last steps")
                for name, loss in losses
                if loss is not None
            ),
            *(
                [Figure(label="Held-out faults fixed", value=fixed, form="percent",
                        sub=f"{count_of(summary, 'heldout_episodes')} episodes, greedy")]
                if fixed is not None
                else []
            ),
        ),
        links=_checkpoint(run),
    )  # fmt: skip


def _loss(run: Run, points: Sequence[Point], metric: str, name: str) -> float | None:
    """Return the newest loss that iterations reported, else that of the summary."""
    losses = (point.metrics[metric] for point in reversed(points) if metric in point.metrics)
    return next(losses, number_of(run.summary, name))


def _counted(summary: dict[str, Any], names: Sequence[tuple[str, str]]) -> str:
    counts = ((count_of(summary, name), label) for name, label in names)
    return ", ".join(f"{count(number)} {label}" for number, label in counts if number)


def _sources(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return label and address of the runs whose trajectories are the training data."""
    judged = config.get("judgements", {})
    named = (
        *config.get("trajectories", {}).get("runs", ()),
        *judged.get("on_policy", ()),
        *judged.get("off_policy", ()),
    )
    return tuple(
        (f"learned from run {run.pk} {run.name}"[:80], run_url(run)) for run in reads.existing_runs(named)
    )


def _checkpoint(run: Run) -> tuple[tuple[str, str], ...]:
    newest = newest_checkpoint(run)
    if newest is None:
        return ()
    address = f"{reverse('run-detail', args=[run.pk])}?tab=checkpoints"
    return ((f"checkpoint run:{run.pk}", address),)
