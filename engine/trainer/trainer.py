"""The update: groups of graded trajectories in, changed weights and metrics out.

An update is up to ``minibatches`` optimizer steps. Each takes whole groups, normalises over all of them,
and sums gradients over padded microbatches. The ratio is taken against the sampler's recorded
log-probabilities, so the first step also measures how far trainer and sampler disagree. A step without
signal or with a gradient that is not finite is not made, and is counted.
To add a schedule or another optimizer: ``Trainer.__init__``; to change the objective: ``engine.algorithms``.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.algorithms.advantages import Member, step_members
from engine.algorithms.objective import TokenBatch, policy_loss
from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.errors import CheckpointError
from engine.inference.transformer import Transformer
from engine.trainer.batch import Microbatch, make_microbatches, make_samples
from engine.trainer.metrics import UpdateMeter, token_logprobs
from engine.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What an update did."""

    metrics: dict[str, float]
    """``area/name`` → value; always finite."""
    members: list[tuple[Member, ...]]
    """What the objective made of every trajectory, in the order of the groups given."""
    optimizer_steps: int
    """0: nothing was learned and the weights are the same bits as before."""


class Trainer:
    """Owns the optimizer of one model; changes the model's weights in place.

    Args:
        model: trained in place.
        algorithm: the objective.
        config: optimizer settings; its ``threads`` is set as torch's thread count.
        max_context: the agent's limit in tokens, the objective's default normalisation length.
        seed: decides which groups share an optimizer step.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        algorithm: AlgorithmConfig,
        config: TrainerConfig,
        max_context: int,
        seed: int,
    ) -> None:
        torch.set_num_threads(config.threads)
        self._model = model
        self._algorithm = algorithm
        self._config = config
        self._max_context = max_context
        self._seed = seed
        self._updates = 0
        self._parameters = list(model.parameters())
        self._device = self._parameters[0].device
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def update(self, groups: Sequence[Group], *, temperature: float) -> UpdateResult:
        """Learn from one iteration's groups.

        Args:
            groups: all groups of the iteration, the same order for the same result.
            temperature: what the trajectories were sampled at, > 0.
        """
        started = time.perf_counter()
        members = step_members(groups, self._algorithm, max_context=self._max_context)
        meter = UpdateMeter(self._algorithm.clip_low, self._algorithm.clip_high)
        for chosen in self._minibatches(len(groups)):
            self._step([groups[i] for i in chosen], [members[i] for i in chosen], temperature, meter)
        self._updates += 1
        metrics = meter.report(members, time.perf_counter() - started)
        return UpdateResult(metrics=metrics, members=members, optimizer_steps=meter.steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights; tensors are the optimizer's own."""
        return {"optimizer": self._optimizer.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict()``'s answer. Raises CheckpointError when it is of another model."""
        try:
            updates, optimizer = int(state["updates"]), state["optimizer"]
            for index, moments in optimizer["state"].items():
                if moments["exp_avg"].shape != self._parameters[index].shape:
                    raise ValueError(f"parameter {index} has another shape")
            self._optimizer.load_state_dict(optimizer)
        except (KeyError, IndexError, ValueError) as error:
            raise CheckpointError(f"the trainer state does not belong to this model: {error}") from error
        self._updates = updates

    def _minibatches(self, num_groups: int) -> list[list[int]]:
        order = list(range(num_groups))
        random.Random(f"{self._seed}/{self._updates}").shuffle(order)
        count = self._config.minibatches
        return [chosen for chosen in (order[i::count] for i in range(count)) if chosen]

    def _step(
        self,
        groups: Sequence[Group],
        members: Sequence[Sequence[Member]],
        temperature: float,
        meter: UpdateMeter,
    ) -> None:
        samples = make_samples(groups, members, self._algorithm, max_context=self._max_context)
        if not samples:
            meter.skipped += 1
            return
        batches = make_microbatches(
            samples, tokens_per_microbatch=self._config.tokens_per_microbatch, device=self._device
        )
        meter.losses.append(math.fsum(self._accumulate(batch, temperature, meter) for batch in batches))
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm).item()
        meter.norms.append(norm)
        if math.isfinite(norm):
            self._optimizer.step()
            meter.steps += 1
        else:
            meter.nonfinite += 1
        self._optimizer.zero_grad()

    def _accumulate(self, batch: Microbatch, temperature: float, meter: UpdateMeter) -> float:
        hidden = self._model.hidden(batch.ids)[batch.rows, batch.columns]
        logprobs, entropy = token_logprobs(self._model.logits(hidden), batch.targets, temperature)
        parts = policy_loss(
            TokenBatch(
                logprobs=logprobs,
                sampler_logprobs=batch.old_logprobs,
                old_logprobs=batch.old_logprobs,
                reference_logprobs=None,
                entropies=None,
                advantages=batch.advantages,
                weights=torch.ones_like(batch.advantages),
                rows=batch.rows,
                num_rows=len(batch.ids),
            ),
            self._algorithm,
        )
        parts.loss.backward()  # type: ignore[no-untyped-call]
        meter.add(batch, logprobs, parts.ratio, entropy)
        return parts.loss.item()
