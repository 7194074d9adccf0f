"""The sampled tokens of a trained trajectory: coloured text, and the arithmetic of one token's gradient."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from engine.algorithms.arithmetic import TokenTerms
from engine.algorithms.terms import has_kl_loss, needs_entropy
from engine.config.learning.algorithm import AlgorithmConfig
from webapp.core.contexts.frame import (
    Crumb,
    group_crumbs,
    trajectory_url,
)
from webapp.core.contexts.numbers import whole
from webapp.rollouts.contexts.advantage import algorithm_of, formula
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.traces import TracedTokens, traced_tokens
from webapp.runs.models.runs import Run

WINDOW = 1500
"""Number of tokens on one page."""
_LEVELS = 4
"""Shades of a colour."""


_CLIPPED: Mapping[str, str] = {
    "high": "the update had already raised it past the upper bound of the clip",
    "low": "the update had already lowered it past the lower bound of the clip",
    "dual": "the dual clip bounds its loss",
}


class _Measure(NamedTuple):
    label: str
    unit: str
    value: Callable[[TracedTokens, int], float]
    neutral: float
    """Value without colour: lower and higher ones have different colours."""
    least: float = 0.0
    """Distance from it that has the darkest colour at least, so that noise has none."""


MEASURES: Mapping[str, _Measure] = {
    "gradient": _Measure(
        "push on the token",
        "− ∂loss/∂log π",
        lambda traced, token: -traced.terms[token].slope * traced.scale,
        0.0,
    ),
    "ratio": _Measure("ratio ρ", "π ÷ π_old", lambda traced, token: traced.terms[token].ratio, 1.0, 0.02),
    "trainer": _Measure(
        "log-probability, trainer",
        "nats",
        lambda traced, token: traced.sampled.logprobs[token],
        0.0,
    ),
    "sampler": _Measure(
        "log-probability, sampler",
        "nats",
        lambda traced, token: traced.sampled.sampler_logprobs[token],
        0.0,
    ),
    "mismatch": _Measure(
        "trainer − sampler",
        "nats",
        lambda traced, token: traced.sampled.logprobs[token] - traced.sampled.sampler_logprobs[token],
        0.0,
        0.02,
    ),
    "entropy": _Measure("entropy", "nats", lambda traced, token: traced.entropies[token], 0.0),
    "correction": _Measure(
        "importance correction c",
        "",
        lambda traced, token: traced.terms[token].correction,
        1.0,
        0.02,
    ),
}
"""Quantities by which tokens can be coloured."""


@dataclass(frozen=True, slots=True)
class TokenView:
    """A sampled token as text."""

    number: int
    text: str
    css: str
    """Class of its colour; empty without one."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Tokens of one step on the page."""

    step: int
    tokens: tuple[TokenView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """One colour and the values it stands for."""

    css: str
    low: float
    high: float
    is_last: bool
    """Whether it also stands for all values beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExplanation:
    """The loss and the gradient of one token, factor by factor."""

    number: int
    text: str
    token_id: int
    step: int
    version: int
    """Policy version that sampled it."""
    sampler_logprob: float
    old_logprob: float
    logprob: float
    reference_logprob: float | None
    entropy: float
    ratio: float
    clip: str
    advantage: float
    formula: str
    surrogate: float
    correction: float
    kl: float
    entropy_term: float
    loss: float
    weight: float
    num_steps: int
    part: float
    """Its part of ``loss/value``."""
    slope: float
    push: float
    """− ∂(loss/value)/∂log π."""
    verdict: str
    """Effect of the update on the token, with its cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTraceContext:
    """Context of the page of a trajectory's tokens."""

    section: str
    crumbs: tuple[Crumb, ...]
    run: Run
    trajectory: Trajectory
    title: str
    trajectory_url: str
    missing: str
    """Reason why there is no trace; empty if there is one."""
    traced: TracedTokens | None
    formula: str
    masked: int
    """Number of tokens without a gradient."""
    by: str
    choices: tuple[tuple[str, str], ...]
    unit: str
    steps: tuple[StepTokens, ...]
    all_steps: tuple[int, ...]
    start: int
    end: int
    previous: int | None
    following: int | None
    """First token of the page before, and of the page after."""
    legend: tuple[LegendEntry, ...]
    token: TokenExplanation | None
    total: float
    """Sum of all tokens' parts of ``loss/value``."""


def build_token_trace(trajectory: Trajectory, params: Mapping[str, str]) -> TokenTraceContext:
    """Build the context of the page.

    Args:
        trajectory: the trajectory.
        params: ``by``, a key of ``MEASURES``; ``start`` or ``step``, where the page begins; ``token``, the
            selected token.
    """
    run = trajectory.run
    algorithm = algorithm_of(run)
    traced = traced_tokens(trajectory, algorithm)
    key = (run.pk, trajectory.phase, trajectory.iteration, trajectory.task_key)
    title = trajectory.task.instance_id if trajectory.task else trajectory.task_key
    address = trajectory_url(*key, trajectory.index)
    equation = formula(trajectory, algorithm)
    by = params.get("by", "") if params.get("by", "") in MEASURES else "gradient"
    chosen = whole(params.get("token", ""))
    start, end = _window(traced, params, chosen)
    levels = token_levels(traced, by)
    return TokenTraceContext(
        section="runs",
        crumbs=group_crumbs(
            run, *key[1:], title, Crumb(f"rollout {trajectory.index}", address), Crumb("tokens")
        ),
        run=run,
        trajectory=trajectory,
        title=title,
        trajectory_url=address,
        missing="" if traced is not None else missing_trace(trajectory, algorithm),
        traced=traced,
        formula=equation,
        masked=sum(not terms.slope for terms in traced.terms) if traced else 0,
        by=by,
        choices=tuple((name, measure.label) for name, measure in MEASURES.items()),
        unit=MEASURES[by].unit,
        steps=_steps(traced, start, end, levels) if traced else (),
        all_steps=tuple(dict.fromkeys(map(traced.step_of, range(len(traced))))) if traced else (),
        start=start,
        end=end,
        previous=max(0, start - WINDOW) if start else None,
        following=end if traced and end < len(traced) else None,
        legend=levels.legend,
        token=_arithmetic(traced, equation, chosen) if traced and chosen is not None else None,
        total=traced.scale * sum(terms.loss for terms in traced.terms) if traced else 0.0,
    )


def explain_token(trajectory: Trajectory, number: int) -> TokenExplanation | None:
    """Return the arithmetic of a trajectory's sampled token; None if it was not recorded."""
    algorithm = algorithm_of(trajectory.run)
    traced = traced_tokens(trajectory, algorithm)
    return _arithmetic(traced, formula(trajectory, algorithm), number) if traced is not None else None


def _arithmetic(traced: TracedTokens, equation: str, number: int) -> TokenExplanation | None:
    if not 0 <= number < len(traced):
        return None
    terms, sampled, position = (
        traced.terms[number],
        traced.sampled,
        traced.positions[number],
    )
    push = -terms.slope * traced.scale
    return TokenExplanation(
        number=number,
        text=traced.texts[number],
        token_id=int(traced.tokens.ids[position]),
        step=traced.step_of(number),
        version=int(traced.tokens.versions[position]),
        sampler_logprob=sampled.sampler_logprobs[number],
        old_logprob=sampled.old_logprobs[number],
        logprob=sampled.logprobs[number],
        reference_logprob=sampled.reference_logprobs[number] if sampled.reference_logprobs else None,
        entropy=traced.entropies[number],
        ratio=terms.ratio,
        clip=terms.clip,
        advantage=traced.advantage,
        formula=equation,
        surrogate=terms.surrogate,
        correction=terms.correction,
        kl=terms.kl,
        entropy_term=terms.entropy,
        loss=terms.loss,
        weight=traced.trace.weight,
        num_steps=len(traced.trace.losses),
        part=terms.loss * traced.scale,
        slope=terms.slope,
        push=push,
        verdict=verdict_of(push, traced.advantage, terms),
    )


def verdict_of(push: float, advantage: float, terms: TokenTerms) -> str:
    """Return what the update does to a token, and why.

    Args:
        push: − ∂loss/∂log π.
        advantage: of its trajectory.
        terms: of its loss.
    """
    if terms.surrogate_slope:
        verb, cause = ("raises", "above") if terms.surrogate_slope < 0 else ("lowers", "below")
        reason = f"the rollout's reward is {cause} the group's baseline"
        if (push > 0) == (terms.surrogate_slope < 0) and push:
            return f"The update {verb} its probability: {reason}."
        return f"The KL term outweighs the advantage: {reason}."
    if not terms.correction:
        reason = "the importance correction excludes it"
    elif terms.clip:
        reason = _CLIPPED[terms.clip]
    elif not advantage:
        reason = "the advantage is 0"
    else:
        reason = "its ratio is 0"
    if terms.kl_slope:
        return (
            f"The update {'raises' if push > 0 else 'lowers'} its probability by the KL term alone: {reason}."
        )
    return f"No gradient{' but that of its entropy' if terms.entropy else ''}: {reason}."


def missing_trace(trajectory: Trajectory, algorithm: AlgorithmConfig | None) -> str:
    """Return the reason why a trajectory has no trace."""
    if algorithm is None or trajectory.phase != "train":
        return "Only rollouts of training have gradients."
    if trajectory.advantage is None:
        return "Its group has not been trained on."
    if not trajectory.loss_mask:
        return "It carries no loss, so that its tokens have no gradient."
    if not trajectory.advantage and not (has_kl_loss(algorithm) or needs_entropy(algorithm)):
        return "Its advantage is 0, so that its tokens have no gradient."
    return (
        "The trainer did not record its tokens: the setting trainer.traced_groups is the share of groups "
        "whose tokens it records."
    )


def _window(traced: TracedTokens | None, params: Mapping[str, str], chosen: int | None) -> tuple[int, int]:
    """Return the first token of the page and the end of its tokens."""
    if traced is None:
        return 0, 0
    start = whole(params.get("start", ""))
    if start is None and (step := whole(params.get("step", ""))) is not None:
        start = bisect_left(range(len(traced)), step, key=traced.step_of)
    if start is None:
        start = (chosen or 0) // WINDOW * WINDOW
    start = min(start, max(0, len(traced) - 1))
    return start, min(start + WINDOW, len(traced))


@dataclass(frozen=True, slots=True)
class TokenLevels:
    """Colours of a measure over all tokens with a gradient."""

    css: Callable[[int], str]
    legend: tuple[LegendEntry, ...]


def token_levels(traced: TracedTokens | None, by: str) -> TokenLevels:
    """Return the colours of a measure, a key of ``MEASURES``."""
    measure = MEASURES[by]
    if traced is None:
        return TokenLevels(lambda _: "", ())
    shown = [number for number, terms in enumerate(traced.terms) if terms.slope]
    distances = [abs(measure.value(traced, number) - measure.neutral) for number in shown]
    # The few largest values share the darkest shade, so that one of them does not pale all others.
    most = sorted(distances)[int(0.98 * (len(distances) - 1))] if distances else 0.0
    width = max(most, measure.least) / _LEVELS
    with_gradient = frozenset(shown)

    def css(number: int) -> str:
        if number not in with_gradient:
            return "none"
        distance = measure.value(traced, number) - measure.neutral
        level = min(_LEVELS, math.ceil(abs(distance) / width - 0.5)) if width else 0
        return "" if not level else f"{'up' if distance > 0 else 'down'}{level}"

    values = [measure.value(traced, number) - measure.neutral for number in shown]
    entries = [
        LegendEntry(
            css=f"{name}{level}",
            low=measure.neutral + sign * (level - 0.5) * width,
            high=measure.neutral + sign * (level + 0.5) * width,
            is_last=level == _LEVELS,
        )
        for name, sign in (("down", -1), ("up", 1))
        if any(sign * value > width / 2 for value in values)
        for level in (range(_LEVELS, 0, -1) if sign < 0 else range(1, _LEVELS + 1))
        if width
    ]
    return TokenLevels(css, tuple(entries))


def _steps(traced: TracedTokens, start: int, end: int, levels: TokenLevels) -> tuple[StepTokens, ...]:
    return tuple(
        StepTokens(
            step,
            tuple(TokenView(number, traced.texts[number], levels.css(number)) for number in numbers),
        )
        for step, numbers in groupby(range(start, end), key=traced.step_of)
    )
