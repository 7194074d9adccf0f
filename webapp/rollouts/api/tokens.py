"""Token ids of trajectories, and the arithmetic of their gradients, in the API."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from engine.tokens import TOKEN_COLUMNS
from webapp.api.auth import viewer
from webapp.rollouts.api.trajectories import readable
from webapp.rollouts.contexts.advantage import algorithm_of
from webapp.rollouts.contexts.token_trace import missing_trace
from webapp.rollouts.contexts.tokens import tokenless_reason
from webapp.rollouts.models.trajectories import TokenBlob, Trajectory
from webapp.rollouts.selectors.traces import traced_tokens

router = Router(tags=["trajectories"], auth=viewer)


class TokensOut(Schema):
    """Tokens from index ``start`` of ``length`` tokens, as columns of equal length."""

    length: int
    samples: list[int]
    """Start indices of training samples: 0, and one for each time the conversation was rendered anew."""
    start: int
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]
    steps: list[int]


class TokenTraceOut(Schema):
    """Sampled tokens from index ``start`` of ``length`` sampled tokens, as columns of equal length."""

    length: int
    start: int
    iteration: int
    """Iteration of the update."""
    step: int
    """Index of the optimizer step, counted among those with a gradient."""
    losses: list[float]
    """Loss of every such step; ``loss/value`` is their mean."""
    advantage: float
    weight: float
    positions: list[int]
    """Indices in the columns of ``tokens``."""
    texts: list[str]
    sampler_logprobs: list[float]
    old_logprobs: list[float]
    logprobs: list[float]
    reference_logprobs: list[float] | None
    entropies: list[float]
    ratios: list[float]
    clips: list[str]
    """Bound of the clip that took effect: ``high``, ``low``, ``dual`` or empty."""
    surrogates: list[float]
    corrections: list[float]
    kl: list[float]
    entropy_terms: list[float]
    token_losses: list[float]
    """Correction × surrogate + kl + entropy term. Times ``weight``, divided by the number of ``losses``: the
    token's part of ``loss/value``."""
    slopes: list[float]
    """Derivative of the loss with respect to log π, before the weight."""


@router.get("/trajectories/{int:trajectory_id}/tokens", response=TokensOut)
def get_tokens(request: HttpRequest, trajectory_id: int, start: int = 0, size: int = 4096) -> dict[str, Any]:
    """Return a window of the tokens that the policy read and sampled."""
    trajectory = readable(request, trajectory_id)
    blob = TokenBlob.objects.filter(trajectory=trajectory).first()
    if blob is None:
        reason = tokenless_reason(trajectory.run, trajectory)
        raise HttpError(404, reason or "The token ids are stored when the rollout ends.")
    record, start = blob.record, max(0, start)
    window = slice(start, start + max(1, min(size, 65_536)))
    columns = {name: getattr(record, name)[window].tolist() for name in TOKEN_COLUMNS}
    return {"length": len(record), "samples": record.starts.tolist(), "start": start} | columns


@router.get("/trajectories/{int:trajectory_id}/token-trace", response=TokenTraceOut)
def get_token_trace(
    request: HttpRequest, trajectory_id: int, start: int = 0, size: int = 4096
) -> dict[str, Any]:
    """Return a window of the sampled tokens with the factors of their losses and gradients."""
    trajectory = readable(request, trajectory_id)
    window = trace_window(trajectory, start=max(0, start), size=max(1, min(size, 65_536)))
    if window is None:
        raise HttpError(404, missing_trace(trajectory, algorithm_of(trajectory.run)))
    return window


def trace_window(trajectory: Trajectory, *, start: int, size: int) -> dict[str, Any] | None:
    """Return the fields of ``TokenTraceOut``; None where the trainer did not record the tokens."""
    traced = traced_tokens(trajectory, algorithm_of(trajectory.run))
    if traced is None:
        return None
    window, sampled, reference = (
        slice(start, start + size),
        traced.sampled,
        traced.sampled.reference_logprobs,
    )
    terms = traced.terms[window]
    return {
        "length": len(traced),
        "start": start,
        "iteration": traced.trace.iteration,
        "step": traced.trace.step,
        "losses": traced.trace.losses,
        "advantage": traced.advantage,
        "weight": traced.trace.weight,
        "positions": list(traced.positions[window]),
        "texts": list(traced.texts[window]),
        "sampler_logprobs": sampled.sampler_logprobs[window],
        "old_logprobs": sampled.old_logprobs[window],
        "logprobs": sampled.logprobs[window],
        "reference_logprobs": None if reference is None else reference[window],
        "entropies": traced.entropies[window],
        "ratios": [each.ratio for each in terms],
        "clips": [each.clip for each in terms],
        "surrogates": [each.surrogate for each in terms],
        "corrections": [each.correction for each in terms],
        "kl": [each.kl for each in terms],
        "entropy_terms": [each.entropy for each in terms],
        "token_losses": [each.loss for each in terms],
        "slopes": [each.slope for each in terms],
    }
