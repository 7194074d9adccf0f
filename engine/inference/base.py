"""Seams between the agent loop and whatever produces tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.types import RolloutKey, Step, TaskRow


class Tokenizer(Protocol):
    """Token ids to text and back; ``encode`` never adds special tokens on its own."""

    vocab_size: int
    im_start: int
    im_end: int
    """ChatML's turn markers; generation stops at ``im_end``."""
    think_start: int
    think_end: int

    def encode(self, text: str) -> list[int]:
        """Return ids of plain text; ChatML markers inside hostile text are encoded as plain bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return text of ids, special tokens spelled out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample; the recorded log-probabilities are of this distribution."""

    temperature: float = 1.0
    """0 is greedy; its log-probabilities are those at temperature 1."""
    top_p: float = 1.0
    max_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationContext:
    """What a scripted policy (oracle, noop, replay) decides from; models ignore it."""

    key: RolloutKey
    row: TaskRow
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Continue ``prompt_ids`` (length T) until a stop token."""

    prompt_ids: Sequence[int]
    sampling: SamplingParams
    seed: int
    """Seeds this request's own random stream: results do not depend on what else is in the batch."""
    stop_ids: frozenset[int]
    context: GenerationContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was sampled, the stop token included; the three sequences share one length."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stopped: bool = True
    """False when ``max_tokens`` ended it."""
    entropy: tuple[float, ...] = field(default_factory=tuple)
    """Per-token entropy in nats where the policy knows it, else empty."""


class Policy(Protocol):
    """Produces completions; may serve many rollouts at once."""

    name: str
    tokenizer: Tokenizer
    version: int

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample a completion. Raises ModelError."""

    async def close(self) -> None:
        """Free what the policy holds."""
