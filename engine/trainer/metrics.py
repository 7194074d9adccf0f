"""Metrics of an update, accumulated over microbatches. To add a metric: a sum here and a key below.

A key is left out when nothing was measured (e.g. no token was trained): a chart then has a gap.
Every rank counts its own microbatches; ``reduce`` sums the counts over all ranks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from engine.algorithms import Member
from engine.algorithms.objective import LossParts
from engine.trainer.batch import Microbatch

_SUMS = (
    "samples", "tokens", "real", "separate", "padded", "entropy", "ratio", "weight", "weight_square",
    "clipped_high", "clipped_low", "clipped_dual", "masked", "mismatch", "mismatch_k1", "mismatch_k3",
    "mismatch_tokens", "kl", "correction",
)  # fmt: skip
_MAXIMA = ("ratio_max", "mismatch_max")


@dataclass(slots=True)
class UpdateMeter:
    """Sums over one update; ``has_*`` select those that the objective measures."""

    has_kl: bool = False
    has_correction: bool = False
    steps: int = 0
    """Number of optimizer steps that changed the weights."""
    skipped: int = 0
    """Number of optimizer steps skipped because no trajectory had a gradient."""
    nonfinite: int = 0
    """Number of optimizer steps skipped because the gradient was not finite."""
    samples: int = 0
    tokens: int = 0
    real: int = 0
    separate: int = 0
    """Tokens of the samples, counted as if none were shared."""
    padded: int = 0
    entropy: float = 0.0
    ratio: float = 0.0
    ratio_max: float = -math.inf
    weight: float = 0.0
    """Sum of π/μ."""
    weight_square: float = 0.0
    clipped_high: int = 0
    clipped_low: int = 0
    clipped_dual: int = 0
    masked: int = 0
    mismatch: float = 0.0
    mismatch_k1: float = 0.0
    mismatch_k3: float = 0.0
    mismatch_max: float = -math.inf
    mismatch_tokens: int = 0
    kl: float = 0.0
    correction: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Loss of each step; this rank's share until reduced."""
    norms: list[float] = field(default_factory=list)

    def add(self, batch: Microbatch, logprobs: Tensor, entropies: Tensor, parts: LossParts) -> None:
        """Add one microbatch of N sampled tokens.

        Until the first optimizer step the weights are the sampler's, so log π − log μ is pure mismatch.
        """
        self.samples += len(batch.lengths)
        self.tokens += len(batch.targets)
        self.real += sum(queries for queries, _ in batch.pieces)
        self.separate += sum(batch.lengths)
        self.padded += batch.width
        if not len(batch.targets):
            return
        self.entropy += entropies.detach().double().sum().item()
        self.ratio += parts.ratio.double().sum().item()
        self.ratio_max = max(self.ratio_max, parts.ratio.max().item())
        self.clipped_high += int(parts.clipped_high.sum())
        self.clipped_low += int(parts.clipped_low.sum())
        self.clipped_dual += int(parts.clipped_dual.sum())
        self.masked += int(parts.masked.sum())
        gap = (logprobs.detach() - batch.sampler_logprobs).double()
        self.weight += gap.exp().sum().item()
        self.weight_square += (2 * gap).exp().sum().item()
        if parts.kl is not None:
            self.kl += parts.kl.double().sum().item()
        if parts.correction is not None:
            self.correction += parts.correction.double().sum().item()
        if not self.steps:
            self.mismatch += gap.abs().sum().item()
            self.mismatch_max = max(self.mismatch_max, gap.abs().max().item())
            self.mismatch_k1 -= gap.sum().item()
            self.mismatch_k3 += (gap.exp() - 1 - gap).sum().item()
            self.mismatch_tokens += len(batch.targets)

    def reduce(self, *, counts: bool) -> None:
        """Sum over all ranks.

        Args:
            counts: False on ranks that repeat another's tokens, which then contribute nothing.
        """
        share = 1.0 if counts else 0.0
        sums = torch.tensor(
            [share * float(getattr(self, name)) for name in _SUMS] + [share * x for x in self.losses],
            dtype=torch.float64,
        )
        maxima = torch.tensor([getattr(self, name) for name in _MAXIMA], dtype=torch.float64)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        sums, maxima = sums.to(device), maxima.to(device)
        dist.all_reduce(sums)
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        for name, value in zip(_SUMS, sums.tolist(), strict=False):
            setattr(self, name, value)
        self.losses = sums.tolist()[len(_SUMS) :]
        for name, value in zip(_MAXIMA, maxima.tolist(), strict=True):
            setattr(self, name, value)

    def report(self, members: Sequence[Sequence[Member]], seconds: float) -> dict[str, float]:
        """Return all finite metrics of the update, ``area/name``."""
        metrics = {
            **self._counts(members),
            "update/steps": float(self.steps),
            "update/skipped": float(self.skipped),
            "update/nonfinite": float(self.nonfinite),
            "update/seconds": seconds,
            "tokens/trained": float(self.tokens),
        }
        if self.tokens:
            metrics |= self._per_token() | {
                "loss/value": statistics.fmean(self.losses),
                "grad/norm": statistics.fmean(self.norms),
                "ratio/max": self.ratio_max,
                "mismatch/max": self.mismatch_max,
                "tokens/padding_share": 1 - self.real / self.padded,
                "tokens/shared_share": 1 - self.real / self.separate,
                "update/tokens_per_s": self.real / max(seconds, 1e-9),
            }
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _per_token(self) -> dict[str, float]:
        metrics = {
            "clip/high": self.clipped_high / self.tokens,
            "clip/low": self.clipped_low / self.tokens,
            "ratio/mean": self.ratio / self.tokens,
            "entropy/mean": self.entropy / self.tokens,
            "mismatch/mean": self.mismatch / max(1, self.mismatch_tokens),
            "mismatch/kl_k1": self.mismatch_k1 / max(1, self.mismatch_tokens),
            "mismatch/kl_k3": self.mismatch_k3 / max(1, self.mismatch_tokens),
            "tokens/masked_share": self.masked / self.tokens,
        }
        if self.weight_square:
            metrics["ratio/effective_share"] = self.weight**2 / (self.tokens * self.weight_square)
        if self.clipped_dual:
            metrics["clip/dual"] = self.clipped_dual / self.tokens
        if self.has_kl:
            metrics["kl/mean"] = self.kl / self.tokens
        if self.has_correction:
            metrics["correction/mean"] = self.correction / self.tokens
        return metrics

    def _counts(self, members: Sequence[Sequence[Member]]) -> dict[str, float]:
        flat = [member for siblings in members for member in siblings]
        carrying = [member for member in flat if member.loss_mask]
        infrastructure = sum(member.is_infrastructure for member in flat)
        dropped = sum(member.is_dropped_group for member in flat)
        counts = {
            "funnel/trajectories": float(len(flat)),
            "funnel/infrastructure": float(infrastructure),
            "funnel/filtered": float(len(flat) - len(carrying) - infrastructure - dropped),
            "funnel/zero_advantage": float(len(carrying) + dropped - self.samples),
            "funnel/trained": float(self.samples),
        }
        if members:
            uniform = sum(not any(member.has_signal for member in siblings) for siblings in members)
            counts["groups/uniform"] = uniform / len(members)
        if carrying:
            counts["advantage/std"] = statistics.pstdev(member.advantage or 0.0 for member in carrying)
        return counts
