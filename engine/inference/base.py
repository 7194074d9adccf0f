"""Interfaces between the agent loop and policies that produce tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.models.chat.base import Chat
from engine.types import RolloutKey, Step, TaskRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters; the recorded log-probabilities are of the resulting distribution."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy, with log-probabilities at temperature 1."""
    top_p: float = 1.0
    """Mass of the nucleus: the fewest most likely tokens that have it are kept; 1 keeps all."""
    top_k: int = 0
    """Number of most likely tokens kept; 0 keeps all."""
    min_p: float = 0.0
    """Minimum probability of a token, as a share of the most likely one's; 0 keeps all."""
    max_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationContext:
    """Context on which scripted policies (oracle, noop, replay) decide; models ignore it."""

    key: RolloutKey
    row: TaskRow
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Request to continue ``prompt_ids`` (length T) until a stop token."""

    prompt_ids: Sequence[int]
    sampling: SamplingParams
    seed: int
    """Seed of this request's own random stream: results do not depend on the rest of the batch."""
    stop_ids: frozenset[int]
    context: GenerationContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Sampled tokens, the stop token included; the three sequences have the same length."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stopped: bool = True
    """False when generation ended at ``max_tokens``."""
    entropy: tuple[float, ...] = field(default_factory=tuple)
    """Per-token entropy in nats where the policy knows it, else empty."""


class Policy(Protocol):
    """Source of completions; may serve many rollouts at once."""

    name: str
    chat: Chat
    version: int
    max_context: int | None
    """Maximum length of a prompt and its response, tokens; None without a limit of its own."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample a completion. Raises ModelError."""

    async def close(self) -> None:
        """Release the policy's resources."""
