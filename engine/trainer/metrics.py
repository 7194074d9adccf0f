"""What an update reports, accumulated over its microbatches. To add a metric: a sum here and a key below.

A key is left out when nothing measured it (no token was trained, say): a chart then has a gap, not a lie.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.algorithms.advantages import Member
from engine.trainer.batch import Microbatch


@dataclass(slots=True)
class UpdateMeter:
    """Sums over one update."""

    clip_low: float
    clip_high: float
    steps: int = 0
    """Optimizer steps that changed the weights."""
    skipped: int = 0
    """Optimizer steps not made because no trajectory had a signal."""
    nonfinite: int = 0
    """Optimizer steps not made because the gradient was not finite."""
    samples: int = 0
    tokens: int = 0
    real: int = 0
    padded: int = 0
    entropy: float = 0.0
    ratio: float = 0.0
    ratio_max: float = -math.inf
    clipped_high: int = 0
    clipped_low: int = 0
    mismatch: float = 0.0
    mismatch_max: float = -math.inf
    mismatch_tokens: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def add(self, batch: Microbatch, logprobs: Tensor, ratio: Tensor, entropy: Tensor) -> None:
        """Count one microbatch; log π, ρ and entropy of its N sampled tokens.

        Until the first optimizer step the weights are the sampler's, so log π − log μ is pure mismatch.
        """
        self.samples += batch.ids.shape[0]
        self.tokens += len(batch.targets)
        self.real += batch.real_tokens
        self.padded += batch.ids.numel()
        self.entropy += entropy.double().sum().item()
        self.ratio += ratio.double().sum().item()
        self.ratio_max = max(self.ratio_max, ratio.max().item())
        self.clipped_high += int(((batch.advantages > 0) & (ratio > 1 + self.clip_high)).sum())
        self.clipped_low += int(((batch.advantages < 0) & (ratio < 1 - self.clip_low)).sum())
        if not self.steps:
            gap = (logprobs.detach() - batch.old_logprobs).abs().double()
            self.mismatch += gap.sum().item()
            self.mismatch_max = max(self.mismatch_max, gap.max().item())
            self.mismatch_tokens += len(batch.targets)

    def report(self, members: Sequence[Sequence[Member]], seconds: float) -> dict[str, float]:
        """All finite metrics of the update, ``area/name``."""
        found = {
            **self._counts(members),
            "update/steps": float(self.steps),
            "update/skipped": float(self.skipped),
            "update/nonfinite": float(self.nonfinite),
            "update/seconds": seconds,
            "tokens/trained": float(self.tokens),
        }
        if self.tokens:
            found |= {
                "loss/value": statistics.fmean(self.losses),
                "grad/norm": statistics.fmean(self.norms),
                "clip/high": self.clipped_high / self.tokens,
                "clip/low": self.clipped_low / self.tokens,
                "ratio/mean": self.ratio / self.tokens,
                "ratio/max": self.ratio_max,
                "entropy/mean": self.entropy / self.tokens,
                "mismatch/mean": self.mismatch / self.mismatch_tokens,
                "mismatch/max": self.mismatch_max,
                "tokens/padding_share": 1 - self.real / self.padded,
                "update/tokens_per_s": self.real / max(seconds, 1e-9),
            }
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _counts(self, members: Sequence[Sequence[Member]]) -> dict[str, float]:
        flat = [member for siblings in members for member in siblings]
        carrying = [member for member in flat if member.loss_mask]
        infrastructure = sum(member.is_infrastructure for member in flat)
        counts = {
            "funnel/trajectories": float(len(flat)),
            "funnel/infrastructure": float(infrastructure),
            "funnel/filtered": float(len(flat) - len(carrying) - infrastructure),
            "funnel/zero_advantage": float(len(carrying) - self.samples),
            "funnel/trained": float(self.samples),
        }
        if members:
            uniform = sum(not any(member.has_signal for member in siblings) for siblings in members)
            counts["groups/uniform"] = uniform / len(members)
        if carrying:
            counts["advantage/std"] = statistics.pstdev(member.advantage or 0.0 for member in carrying)
        return counts


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of ``targets`` [N] and entropy (nats, no gradient) under ``logits`` [N, V] / T."""
    table = torch.log_softmax(logits.float() / temperature, dim=-1)
    with torch.no_grad():
        entropy = -(table.exp() * table).sum(dim=-1)
    return table.gather(1, targets.unsqueeze(1)).squeeze(1), entropy
