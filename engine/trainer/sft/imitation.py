"""Training of a fresh policy by imitation of an expert, once; the policy is stored for later runs.

The same settings and episodes give the same weights.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.nn import functional

from engine.models.builtin.architectures import ARCHITECTURES
from engine.models.builtin.transformer import Transformer
from engine.models.chat.base import Chat
from engine.models.chat.chatml import ChatML
from engine.models.loader import fresh_tokenizer, save_policy_checkpoint
from engine.tokens import TokenRecord
from engine.trainer.sft.muon import MuonWithAdam

_MUON_RATE, _ADAM_RATE = 0.02, 2e-3
_WARMUP_STEPS, _CONSTANT_UNTIL, _FINAL_SHARE = 20, 0.7, 0.1
_PROMPT_WEIGHT = 0.1
_REPORT_EVERY = 10
_MICROBATCH_TOKENS = 2048
_WIDTH_STEP = 32

Progress = Callable[[str, int, int], None]


class Episodes(Protocol):
    """Endless stream of an expert's episodes."""

    def take(self, count: int) -> list[TokenRecord]:
        """Return the next episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSettings:
    """Settings of one training by imitation."""

    architecture: str
    """Name in ``engine.models.builtin.architectures``."""
    steps: int
    batch_size: int
    """Episodes of an optimizer step."""
    seed: int
    """Seed of the fresh weights."""


def train_by_imitation(
    folder: Path,
    settings: ImitationSettings,
    episodes: Callable[[Chat], Episodes],
    provenance: Mapping[str, Any],
    *,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> None:
    """Train a fresh policy and save it, unless its checkpoint folder exists already.

    Args:
        folder: of the checkpoint; not created when the training was stopped.
        settings: of the training.
        episodes: makes the stream of episodes in the policy's tokens.
        provenance: origin of the episodes; must be JSON.
        progress: called with a message, completed steps and total steps.
        should_stop: polled every step.
    """
    with _alone(folder, progress, should_stop) as may_work:
        if may_work and not folder.is_dir():
            _train(folder, settings, episodes, provenance, progress, should_stop)


@contextmanager
def _alone(folder: Path, progress: Progress, should_stop: Callable[[], bool]) -> Iterator[bool]:
    """Lock the folder, so that concurrent runs train the same policy once; yield False when stopped."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress("warm start: another run is training it", 0, 0)
        try:
            lock.acquire(cancel_check=should_stop)
        except Timeout:
            yield False
            return
    try:
        yield True
    finally:
        lock.release()


def _train(
    folder: Path,
    settings: ImitationSettings,
    episodes: Callable[[Chat], Episodes],
    provenance: Mapping[str, Any],
    progress: Progress,
    should_stop: Callable[[], bool],
) -> None:
    torch.set_num_threads(1)  # the weights depend on it, through the order of sums
    tokenizer = fresh_tokenizer(settings.architecture)
    model = Transformer(ARCHITECTURES[settings.architecture], seed=settings.seed)
    stream = episodes(ChatML(tokenizer))
    optimizer = MuonWithAdam(model, muon_rate=_MUON_RATE, adam_rate=_ADAM_RATE)
    for step in range(settings.steps):
        if should_stop():
            return
        loss = _accumulate(model, stream.take(settings.batch_size))
        optimizer.step(_rate_factor(step, settings.steps))
        if step % _REPORT_EVERY == 0 or step + 1 == settings.steps:
            progress(f"warm start: loss {loss:.3f}", step + 1, settings.steps)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    save_policy_checkpoint(folder, model, tokenizer, {**provenance, "final_loss": loss, "versions": versions})


def _rate_factor(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: a short warm-up, constant, then linear down."""
    decay = max(0.0, (step / steps - _CONSTANT_UNTIL) / (1 - _CONSTANT_UNTIL))
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - (1 - _FINAL_SHARE) * decay)


def _accumulate(model: Transformer, episodes: list[TokenRecord]) -> float:
    """Accumulate the gradient of one step's episodes; return the mean loss of the expert's tokens."""
    sampled = sum(episode.num_sampled for episode in episodes)
    weight = sampled + _PROMPT_WEIGHT * (sum(len(episode) for episode in episodes) - sampled)
    total = 0.0
    for batch in _microbatches(episodes):
        ids, mask, inside = _collate(batch)
        logits = model.logits(model.hidden(ids[:, :-1]))
        losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        weights = (torch.where(mask, 1.0, _PROMPT_WEIGHT) * inside)[:, 1:]
        torch.autograd.backward((losses * weights).sum() / weight)
        total += float(losses.detach()[mask[:, 1:]].sum())
    return total / sampled


def _collate(batch: Sequence[TokenRecord]) -> tuple[Tensor, Tensor, Tensor]:
    """Return right-padded ids [B, T] and two boolean masks [B, T]: sampled tokens, real tokens.

    T - 1, the width of the model's input, is a multiple of 32: a CPU's matrix kernels are compiled per shape.
    """
    longest = max(len(episode.ids) for episode in batch)
    width = -(-(longest - 1) // _WIDTH_STEP) * _WIDTH_STEP + 1
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros(len(batch), width, dtype=torch.bool)
    inside = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, episode in enumerate(batch):
        length = len(episode.ids)
        ids[row, :length] = torch.tensor(episode.ids)
        mask[row, :length] = torch.tensor(episode.mask, dtype=torch.bool)
        inside[row, :length] = True
    return ids, mask, inside


def _microbatches(episodes: list[TokenRecord]) -> Iterator[list[TokenRecord]]:
    """Yield batches of episodes of similar length: most are short, and small batches suit a CPU."""
    batch: list[TokenRecord] = []
    for episode in sorted(episodes, key=lambda episode: -len(episode)):
        if batch and (len(batch) + 1) * len(batch[0]) > _MICROBATCH_TOKENS:
            yield batch
            batch = []
        batch.append(episode)
    if batch:
        yield batch
