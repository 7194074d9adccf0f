"""The update: groups of graded trajectories in, changed weights and metrics out.

An update is up to ``minibatches`` optimizer steps. Each takes whole groups, normalises over all of them,
and sums gradients over packed microbatches. Log-probabilities by the weights before the update and by the
reference policy are computed once, before the first step. A step without signal or with a non-finite
gradient is skipped and counted. Several ranks run the same code on the same groups: each forwards its
share of the rows, and gradients and counts are added up.
To add another optimizer: ``Trainer.__init__``; to change the objective: ``engine.algorithms``.
"""

from __future__ import annotations

import math
import random
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from engine.algorithms import (
    Member,
    has_kl_loss,
    has_kl_reward,
    needs_old_logprobs,
    needs_reference,
    step_members,
)
from engine.algorithms.objective import TokenBatch, kl_estimate, policy_loss
from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.errors import CheckpointError, UpdateAbandonedError
from engine.models.builtin.transformer import Transformer
from engine.models.devices import peak_flops
from engine.models.sizes import count_sizes
from engine.trainer.batch import Microbatch, make_microbatches, make_samples, trajectory_samples
from engine.trainer.efficiency import PassMeter
from engine.trainer.metrics import UpdateMeter
from engine.trainer.ranks import ALONE, Ranks
from engine.trainer.schedule import learning_rate
from engine.trainer.scorer import DTYPES, Scorer
from engine.types import Group

if TYPE_CHECKING:
    from engine.models.adapters import Adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Result of an update."""

    metrics: dict[str, float]
    """Metrics as ``area/name`` → value; always finite."""
    members: list[tuple[Member, ...]]
    """Treatment of every trajectory by the objective, in the order of the given groups."""
    optimizer_steps: int
    """Number of optimizer steps; with 0 nothing was learned and the weights are bitwise unchanged."""


class Trainer:
    """Owns the optimizer of one model; changes the model's weights in place.

    Args:
        model: trained in place; with adapters, ``base`` plus adapters is written into it after updates.
        algorithm: the objective.
        config: optimizer settings; its ``threads`` is set as torch's thread count.
        max_context: the agent's limit in tokens, the objective's default normalisation length.
        seed: decides which groups share an optimizer step, and adapters' first values.
        reference: the frozen reference policy of the KL term, where the objective has one.
        base: the frozen weights under adapters; None: ``model`` as it is now.
        ranks: this process's place among several; ``model`` is then sharded and no longer callable.

    Raises:
        ValueError: the objective has a KL term and there is no reference.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        algorithm: AlgorithmConfig,
        config: TrainerConfig,
        max_context: int,
        seed: int,
        reference: Transformer | None = None,
        base: Transformer | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        torch.set_num_threads(config.threads)
        self._algorithm = algorithm
        self._config = config
        self._max_context = max_context
        self._seed = seed
        self._ranks = ranks
        self._updates = 0
        self._passes = PassMeter()
        self._abandoned = threading.Event()
        self._device = next(model.parameters()).device
        self._adapters: Adapters | None = None
        if config.lora_rank:
            from engine.models.adapters import Adapters  # peft takes seconds to import

            self._adapters = Adapters(model, base, config, seed)
        trained = self._adapters.model if self._adapters else model
        self._sizes = count_sizes(trained)
        self._scorer = Scorer(
            trained, precision=config.precision, ranks=ranks, recompute=config.activation_checkpointing
        )
        self._parameters = [p for p in self._scorer.parameters() if p.requires_grad]
        self._reference = self._frozen(reference)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
        )

    def update(self, groups: Sequence[Group], *, temperature: float) -> UpdateResult:
        """Update the weights from one iteration's groups.

        Args:
            groups: all groups of the iteration, the same order for the same result.
            temperature: the sampling temperature of the trajectories, > 0.

        Raises:
            UpdateAbandonedError: ``abandon`` was called.
        """
        started = time.perf_counter()
        self._passes = PassMeter()
        rate = learning_rate(self._config, self._updates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        sums = self._kl_sums(groups, temperature) if has_kl_reward(self._algorithm) else None
        members = step_members(groups, self._algorithm, max_context=self._max_context, kl_sums=sums)
        meter = UpdateMeter(
            has_kl=has_kl_loss(self._algorithm),
            has_correction=needs_old_logprobs(self._algorithm),
        )
        plan = [self._rows(groups, members, chosen) for chosen in self._minibatches(len(groups))]
        self._score_before(plan, temperature)
        for batches in plan:
            self._step(batches, temperature, meter)
        self._updates += 1
        if self._adapters and meter.steps:
            self._adapters.fold()
        if self._ranks.mesh is not None:
            meter.reduce(counts=self._ranks.context_rank == 0)
            self._passes.reduce(self._device, counts=self._ranks.context_rank == 0)
        seconds = time.perf_counter() - started
        metrics = meter.report(members, seconds)
        metrics |= self._passes.report(seconds, self._peak()) | {"update/learning_rate": rate}
        return UpdateResult(metrics=metrics, members=members, optimizer_steps=meter.steps)

    def abandon(self) -> None:
        """Abort an update before its next microbatch; called from another thread. Later use is rejected."""
        self._abandoned.set()

    def state_dict(self) -> dict[str, Any]:
        """Return the state except the weights (only the base's, with adapters) and the saved shards.

        Tensors are not copied; ``optimizer`` is None where ranks write their parts themselves.
        Raises UpdateAbandonedError: after ``abandon`` it may be half of an update's.
        """
        self._go_on()
        adapters = {"adapters": self._adapters.state_dict()} if self._adapters else {}
        optimizer = None if self._ranks.mesh else self._optimizer.state_dict()
        return {"optimizer": optimizer, "updates": self._updates, **adapters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of ``state_dict()``. Raises CheckpointError when it belongs to another model."""
        try:
            updates, optimizer = int(state["updates"]), state["optimizer"]
            if ("adapters" in state) != bool(self._adapters):
                raise ValueError("one has adapters, the other has none")
            if optimizer is not None:
                self._check(optimizer)
            if self._adapters:
                self._adapters.load_state_dict(state["adapters"])
            if optimizer is not None:
                self._optimizer.load_state_dict(optimizer)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the trainer state does not belong to this model: {error}") from error
        self._updates = updates

    def save_shards(self, folder: Path) -> bool:
        """Write this rank's part of the optimizer's state; return False with a single rank."""
        if self._ranks.mesh is None:
            return False
        save({"optimizer": get_optimizer_state_dict(self._scorer, self._optimizer)}, checkpoint_id=folder)
        return True

    def load_shards(self, folder: Path) -> None:
        """Read the optimizer's state written by any number of ranks. Raises CheckpointError."""
        state = {"optimizer": get_optimizer_state_dict(self._scorer, self._optimizer)}
        try:
            with warnings.catch_warnings():  # a single rank logs that it reads alone
                warnings.simplefilter("ignore", UserWarning)
                load(state, checkpoint_id=folder, no_dist=self._ranks.mesh is None)
        except (RuntimeError, OSError, CheckpointException) as error:
            raise CheckpointError(f"cannot read the ranks' state in {folder}: {error}") from error
        set_optimizer_state_dict(self._scorer, self._optimizer, optim_state_dict=state["optimizer"])

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and full weights of the trained model one by one; a collective among ranks."""
        self._scorer.reshard()
        for name, parameter in self._scorer.model.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            yield name, whole

    def close(self) -> None:
        """Do nothing; only a group of ranks has processes to stop."""

    def _check(self, optimizer: dict[str, Any]) -> None:
        if self._ranks.mesh is not None:
            raise ValueError("one rank saved it whole: set data_parallel and context_parallel to 1")
        for index, moments in optimizer["state"].items():
            if moments["exp_avg"].shape != self._parameters[index].shape:
                raise ValueError(f"parameter {index} has another shape")

    def _frozen(self, reference: Transformer | None) -> Scorer | None:
        if not needs_reference(self._algorithm):
            return None
        if reference is None:
            raise ValueError("the objective has a KL term: the trainer needs a reference policy")
        reference.requires_grad_(False)
        return Scorer(reference, precision=self._config.precision, ranks=self._ranks)

    def _minibatches(self, num_groups: int) -> list[list[int]]:
        order = list(range(num_groups))
        random.Random(f"{self._seed}/{self._updates}").shuffle(order)
        count = self._config.minibatches
        return [chosen for chosen in (order[i::count] for i in range(count)) if chosen]

    def _rows(
        self, groups: Sequence[Group], members: Sequence[Sequence[Member]], chosen: Sequence[int]
    ) -> list[Microbatch]:
        """Return this rank's rows of one optimizer step; empty when the step has no gradient at all."""
        samples = make_samples(
            [groups[i] for i in chosen],
            [members[i] for i in chosen],
            self._algorithm,
            max_context=self._max_context,
        )
        return make_microbatches(
            samples,
            tokens_per_microbatch=self._config.tokens_per_microbatch,
            device=self._device,
            ranks=self._ranks,
        )

    @torch.no_grad()
    def _score_before(self, plan: Sequence[Sequence[Microbatch]], temperature: float) -> None:
        """Fill in log-probabilities of the old weights and the reference, where the objective needs them."""
        with self._passes.scoring(self._device):
            for batch in self._until_abandoned(batch for batches in plan for batch in batches):
                if needs_old_logprobs(self._algorithm):
                    batch.old_logprobs = self._score(self._scorer, batch, temperature)
                if self._reference is not None:
                    batch.reference_logprobs = self._score(self._reference, batch, temperature)

    def _score(self, scorer: Scorer, batch: Microbatch, temperature: float) -> Tensor:
        """Return log-probabilities without gradients."""
        self._passes.add_scoring(self._sizes, batch)
        logprobs: Tensor = scorer(batch, temperature, entropy=False)[0]
        return logprobs

    @torch.no_grad()
    def _kl_sums(self, groups: Sequence[Group], temperature: float) -> list[list[float]]:
        """Return Σ_t KL_it of every trajectory, 0 for those without sampled tokens."""
        assert self._reference is not None
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        batches = make_microbatches(
            [sample for i, t in enumerate(trajectories) for sample in trajectory_samples(t.tokens, place=i)],
            tokens_per_microbatch=self._config.tokens_per_microbatch,
            device=self._device,
            ranks=self._ranks,
        )
        sums = torch.zeros(len(trajectories), dtype=torch.float64, device=self._device)
        scorers = self._scorer, self._reference
        with self._passes.scoring(self._device):
            for batch in self._until_abandoned(batches):
                logprobs, reference = (self._score(scorer, batch, temperature) for scorer in scorers)
                terms = kl_estimate(logprobs, reference, self._algorithm.kl)
                places = torch.tensor(batch.places, dtype=torch.int64, device=self._device)
                sums.index_add_(0, places[batch.rows], terms.double())
        if self._ranks.mesh is not None:
            if self._ranks.context_rank:
                sums.zero_()
            torch.distributed.all_reduce(sums)
        values = iter(sums.tolist())
        return [[next(values) for _ in group.trajectories] for group in groups]

    def _step(self, batches: Sequence[Microbatch], temperature: float, meter: UpdateMeter) -> None:
        if not batches:
            meter.skipped += 1
            return
        parts = [self._accumulate(batch, temperature, meter) for batch in self._until_abandoned(batches)]
        meter.losses.append(math.fsum(parts))
        total = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        norm = (total.full_tensor() if isinstance(total, DTensor) else total).item()
        meter.norms.append(norm)
        if math.isfinite(norm):
            self._optimizer.step()
            meter.steps += 1
        else:
            meter.nonfinite += 1
        self._optimizer.zero_grad()

    def _accumulate(self, batch: Microbatch, temperature: float, meter: UpdateMeter) -> float:
        logprobs, entropies = self._scorer(batch, temperature)
        old = batch.sampler_logprobs if batch.old_logprobs is None else batch.old_logprobs
        parts = policy_loss(
            TokenBatch(
                logprobs=logprobs,
                sampler_logprobs=batch.sampler_logprobs,
                old_logprobs=old,
                reference_logprobs=batch.reference_logprobs,
                entropies=entropies,
                advantages=batch.advantages,
                weights=batch.weights,
                rows=batch.rows,
                num_rows=len(batch.lengths),
            ),
            self._algorithm,
        )
        parts.loss.backward()  # type: ignore[no-untyped-call]
        meter.add(batch, logprobs, entropies, parts)
        self._passes.add_training(self._sizes, batch, checkpointing=self._config.activation_checkpointing)
        return parts.loss.item()

    def _until_abandoned(self, batches: Iterable[Microbatch]) -> Iterator[Microbatch]:
        for batch in batches:
            self._go_on()
            yield batch

    def _go_on(self) -> None:
        if self._abandoned.is_set():
            raise UpdateAbandonedError("the update was abandoned: go on from the last checkpoint")

    def _peak(self) -> float | None:
        """Return the peak FLOP/s of all ranks' devices; None where it is not known."""
        peak = peak_flops(self._device, DTYPES[self._config.precision])
        return None if peak is None else peak * self._ranks.size
