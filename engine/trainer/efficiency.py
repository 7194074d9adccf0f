"""FLOPs and time of an update's passes, as shares of the devices' peak."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist

from engine.models.arithmetic import pass_flops
from engine.models.sizes import ModelSizes
from engine.trainer.batch import Microbatch


@dataclass(slots=True)
class PassMeter:
    """FLOPs of one update, this rank's share until reduced; all zero for an update without tokens."""

    trained: float = 0.0
    """FLOPs of passes forwards and backwards."""
    scored: float = 0.0
    """FLOPs of passes without gradients: with the weights before the update, and with the reference."""
    recomputed: float = 0.0
    """FLOPs of activations computed a second time, which are no part of the MFU."""
    scoring_seconds: float = 0.0

    def add_training(self, sizes: ModelSizes, batch: Microbatch, *, checkpointing: bool) -> None:
        """Add a pass forwards and backwards."""
        flops = pass_flops(
            sizes, batch.pieces, len(batch.targets), training=True, checkpointing=checkpointing
        )
        self.trained += flops.model
        self.recomputed += flops.recomputed

    def add_scoring(self, sizes: ModelSizes, batch: Microbatch) -> None:
        """Add a pass without gradients."""
        self.scored += pass_flops(sizes, batch.pieces, len(batch.targets), training=False).model

    @contextmanager
    def scoring(self, device: torch.device) -> Iterator[None]:
        """Measure the time of the enclosed passes that only score, until the device has finished them."""
        started = time.perf_counter()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.scoring_seconds += time.perf_counter() - started

    def reduce(self, device: torch.device, *, counts: bool) -> None:
        """Sum the FLOPs over all ranks.

        Args:
            device: of the collective.
            counts: False on ranks that repeat another's tokens, which then contribute nothing.
        """
        own = torch.tensor(astuple(self)[:3], dtype=torch.float64, device=device) * counts
        dist.all_reduce(own)
        self.trained, self.scored, self.recomputed = own.tolist()

    def report(self, seconds: float, peak: float | None) -> dict[str, float]:
        """Return the update's metrics; shares of the peak only where it is known.

        Args:
            seconds: of the whole update.
            peak: FLOP/s of all ranks' devices together.
        """
        model = self.trained + self.scored
        if not model:
            return {}
        metrics = {
            "update/flops_per_s": model / max(seconds, 1e-9),
            "update/recomputed_share": self.recomputed / (model + self.recomputed),
        }
        if peak is None:
            return metrics
        metrics["update/mfu"] = metrics["update/flops_per_s"] / peak
        if self.trained:
            metrics["update/mfu_training"] = self.trained / max(seconds - self.scoring_seconds, 1e-9) / peak
        if self.scored:
            metrics["update/mfu_scoring"] = self.scored / max(self.scoring_seconds, 1e-9) / peak
        return metrics
