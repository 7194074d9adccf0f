"""Interface of a trainer, in one process or in ranks, and the common planning of an update.

Advantages, weights, the groups of each optimizer step and the packing into rows are decided in one process;
each rank receives its own rows only.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.algorithms import Member, has_kl_reward, needs_forward, step_members
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.errors import TrainerError
from engine.inference.base import WeightConsumer
from engine.tokens import TokenRecord
from engine.trainer.batch import (
    Row,
    Sample,
    imitation_samples,
    make_samples,
    plain_sample,
    share_rows,
    trajectory_samples,
)
from engine.trainer.efficiency import PassMeter
from engine.trainer.metrics import UpdateMeter
from engine.trainer.schedule import learning_rate
from engine.trainer.shards import Fingerprint
from engine.trainer.traces import TokenTrace
from engine.types import Group

_IMITATION_METRICS = frozenset(
    {
        "loss/value", "grad/norm", "entropy/mean", "tokens/trained", "tokens/padding_share",
        "tokens/shared_share", "update/steps", "update/nonfinite", "update/seconds", "update/tokens_per_s",
    }
)  # fmt: skip
"""Metrics of an update that are meaningful without a sampler and advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Result of an update."""

    metrics: dict[str, float]
    """Metrics as ``area/name`` → value; always finite."""
    members: list[tuple[Member, ...]]
    """Treatment of every trajectory by the objective, in the order of the given groups."""
    optimizer_steps: int
    """Number of optimizer steps; with 0 nothing was learned and the weights are bitwise unchanged."""
    losses: list[float]
    """Loss of each optimizer step with a gradient."""
    traces: dict[int, TokenTrace]
    """Traces of the trajectories of the chosen groups, by index across the given groups; none of steps that
    were skipped because their gradient was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One data rank's part of an update."""

    steps: Sequence[Sequence[Row]]
    """Rows of each optimizer step, the same number for every rank; empty if the step has no gradient."""
    rate: float
    """Learning rate."""
    temperature: float
    """Sampling temperature of the trajectories."""
    traced: frozenset[int] = frozenset()
    """``Sample.trajectory_index`` of the trajectories to trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Outcome of the optimizer steps of an update, summed over all ranks."""

    meter: UpdateMeter
    passes: PassMeter
    saving_seconds: float
    """Time for which the first optimizer step waited for a checkpoint."""
    peak_flops: float | None
    """Peak FLOP/s of all ranks' devices; None where it is unknown."""
    traces: dict[int, TokenTrace]
    """Traces by ``Sample.trajectory_index``."""


class Learner(ABC):
    """Trainer of one policy, in one process or in ranks.

    Args:
        algorithm: the objective.
        config: settings.
        max_context: the agent's limit in tokens, the objective's default normalisation length.
        seed: decides which groups share an optimizer step.
    """

    def __init__(
        self, algorithm: AlgorithmConfig, config: TrainerConfig, *, max_context: int, seed: int
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        self._max_context = max_context
        self._seed = seed
        self.updates = 0
        """Number of updates made; decides learning rates and the order of groups."""
        self._is_whole = True
        """False from the start of an update until it is completed."""

    def update(self, groups: Sequence[Group], *, temperature: float) -> UpdateResult:
        """Update the weights from one iteration's groups.

        Args:
            groups: all groups of the iteration; the result depends on their order.
            temperature: the sampling temperature of the trajectories, > 0.

        Raises:
            UpdateAbandonedError: ``abandon`` was called.
            TrainerError: a rank failed or ended.
        """
        started = time.perf_counter()
        sums = self._kl_sums(groups, temperature) if has_kl_reward(self._algorithm) else None
        members = step_members(groups, self._algorithm, max_context=self._max_context, kl_sums=sums)
        rate = learning_rate(self._config, self.updates)
        steps = [self._rows(groups, members, chosen) for chosen in self._minibatches(len(groups))]
        traced = self._traced(groups, members)
        result = self._make(steps, rate=rate, temperature=temperature, traced=traced)
        seconds = time.perf_counter() - started
        metrics = result.meter.report(members, seconds)
        metrics |= result.passes.report(seconds, result.peak_flops) | {"update/learning_rate": rate}
        metrics["time/checkpoint"] = result.saving_seconds
        return UpdateResult(
            metrics=metrics,
            members=members,
            optimizer_steps=result.meter.steps,
            losses=result.meter.losses,
            traces={
                index: trace
                for index, trace in result.traces.items()
                if trace.record.is_finite and math.isfinite(result.meter.norms[trace.step])
            },
        )

    def imitate(self, records: Sequence[TokenRecord], *, rate: float) -> dict[str, float]:
        """Make one optimizer step on the mean cross-entropy of all sampled tokens of these records.

        The trainer's objective is ``batch.IMITATION``.

        Args:
            records: at least one with sampled tokens; their log-probabilities are ignored.
            rate: learning rate.

        Returns:
            Metrics as ``area/name`` → value; always finite.

        Raises:
            UpdateAbandonedError: ``abandon`` was called.
            TrainerError: a rank failed or ended.
        """
        started = time.perf_counter()
        result = self._make([self._share(imitation_samples(records))], rate=rate, temperature=1.0)
        seconds = time.perf_counter() - started
        metrics = result.meter.report((), seconds)
        metrics = {name: value for name, value in metrics.items() if name in _IMITATION_METRICS}
        metrics |= result.passes.report(seconds, result.peak_flops) | {"update/learning_rate": rate}
        metrics["time/checkpoint"] = result.saving_seconds
        return metrics

    def cross_entropy(self, records: Sequence[TokenRecord]) -> float:
        """Return the mean cross-entropy of all sampled tokens; at least one record must have some."""
        samples = imitation_samples(records)
        (rows,) = share_rows(samples, tokens_per_microbatch=self._config.tokens_per_microbatch)
        logprobs = (value for row in rows for value in self._logprobs(row))
        return -math.fsum(logprobs) / sum(record.num_sampled for record in records)

    def send_weights(self, consumer: WeightConsumer) -> Any:
        """Pass the current weights to ``consumer``, in the first of several ranks; return its result.

        At most one tensor exists in full at a time.

        Raises:
            PublicationError: the consumer failed.
            TrainerError: the last update was not completed, or a rank failed.
        """
        if not self._is_whole:
            raise TrainerError(
                "the last update was not completed, so that its weights are not published: go on from the "
                "last checkpoint"
            )
        return self._send_weights(consumer)

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token after the first, at temperature 1.

        Args:
            ids: token ids [T], T ≥ 2.
        """
        return self._logprobs((plain_sample(ids),))

    @abstractmethod
    def abandon(self) -> None:
        """End the running update early; called from another thread. Later use is rejected."""

    @abstractmethod
    def save(self, folder: Path) -> Future[dict[str, Fingerprint]]:
        """Start writing weights and optimizer state to ``folder``; the next optimizer step waits for it.

        Nothing is copied: weights do not change between two optimizer steps. The future's result is the
        fingerprint of every file.

        Raises:
            UpdateAbandonedError: after ``abandon`` the state may be half of an update's.
        """

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Read a state that ``save`` wrote with any number of ranks. Raises CheckpointError."""

    @abstractmethod
    def close(self) -> None:
        """Stop threads and processes; safe to call twice."""

    @abstractmethod
    def _divergences(self, shares: Sequence[Sequence[Row]], temperature: float) -> dict[int, float]:
        """Return Σ KL over the sampled tokens of each ``Sample.trajectory_index`` over all data ranks."""

    @abstractmethod
    def _send_weights(self, consumer: WeightConsumer) -> Any:
        """Pass the weights to ``consumer``; return its result. Raises PublicationError."""

    @abstractmethod
    def _logprobs(self, row: Row) -> list[float]:
        """Return the log-probabilities of a row's targets."""

    @abstractmethod
    def _learn(self, shares: Sequence[Share]) -> StepResult:
        """Make the optimizer steps, given each data rank's share."""

    def _make(
        self,
        steps: Sequence[Sequence[Sequence[Row]]],
        *,
        rate: float,
        temperature: float,
        traced: frozenset[int] = frozenset(),
    ) -> StepResult:
        """Make the optimizer steps of an update, given each step's rows by data rank."""
        shares = [
            Share(steps=[step[rank] for step in steps], rate=rate, temperature=temperature, traced=traced)
            for rank in range(self._config.data_parallel)
        ]
        self._is_whole = False
        result = self._learn(shares)
        self._is_whole = True
        self.updates += 1
        return result

    def _minibatches(self, num_groups: int) -> list[list[int]]:
        order = list(range(num_groups))
        random.Random(f"{self._seed}/{self.updates}").shuffle(order)
        count = self._config.minibatches
        return [chosen for chosen in (order[i::count] for i in range(count)) if chosen]

    def _rows(
        self, groups: Sequence[Group], members: Sequence[Sequence[Member]], chosen: Sequence[int]
    ) -> list[list[Row]]:
        """Return each data rank's rows of one optimizer step."""
        starts = _starts(groups)
        samples = make_samples(
            [groups[i] for i in chosen],
            [members[i] for i in chosen],
            self._algorithm,
            max_context=self._max_context,
            indices=[index for i in chosen for index in range(starts[i], starts[i + 1])],
        )
        return self._share(samples)

    def _traced(self, groups: Sequence[Group], members: Sequence[Sequence[Member]]) -> frozenset[int]:
        """Return the indices of the trajectories of some groups with a gradient, chosen at random."""
        forwarded = [
            number
            for number, siblings in enumerate(members)
            if any(needs_forward(member, self._algorithm) for member in siblings)
        ]
        count = math.ceil(self._config.traced_groups * len(groups))
        random.Random(f"{self._seed}/traces/{self.updates}").shuffle(forwarded)
        starts = _starts(groups)
        return frozenset(
            index for number in forwarded[:count] for index in range(starts[number], starts[number + 1])
        )

    def _share(self, samples: Sequence[Sample]) -> list[list[Row]]:
        return share_rows(
            samples,
            tokens_per_microbatch=self._config.tokens_per_microbatch,
            data_parallel=self._config.data_parallel,
        )

    def _kl_sums(self, groups: Sequence[Group], temperature: float) -> list[list[float]]:
        """Return Σ_t KL_it of every trajectory, 0 for those without sampled tokens."""
        records = [trajectory.tokens for group in groups for trajectory in group.trajectories]
        samples = [
            sample for i, r in enumerate(records) for sample in trajectory_samples(r, trajectory_index=i)
        ]
        divergences = self._divergences(self._share(samples), temperature)
        indices = itertools.count()
        return [[divergences.get(next(indices), 0.0) for _ in group.trajectories] for group in groups]


def _starts(groups: Sequence[Group]) -> list[int]:
    """Return the index of each group's first trajectory across all groups, and their number."""
    return [0, *itertools.accumulate(len(group.trajectories) for group in groups)]
