"""Trainer of one process: optimizer steps on packed rows.

An update is up to ``minibatches`` optimizer steps. Each takes whole groups, normalises over all of them,
and sums gradients over packed rows. Log-probabilities under the weights before the update and under the
reference policy are computed once, before the first step. A step without signal or with a non-finite
gradient is skipped and counted. Several ranks run the same code, each on its own rows; gradients and counts
are summed.
To add another optimizer: ``engine.trainer.optimizers``; to change the objective: ``engine.algorithms``.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from engine.algorithms import has_kl_loss, needs_old_logprobs, needs_reference
from engine.algorithms.objective import TokenBatch, kl_estimate, policy_loss
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.errors import CheckpointError, PublicationError, UpdateAbandonedError, describe_error
from engine.inference.base import WeightConsumer, WeightStream
from engine.models.base import LanguageModel
from engine.models.devices import peak_flops
from engine.models.precision import DTYPES
from engine.models.sizes import count_sizes
from engine.models.weights.live import LiveWeights, whole_tensor
from engine.models.weights.model_weights import stored_tensors
from engine.models.weights.source import TensorInfo
from engine.trainer.batch import Microbatch, Row, make_microbatch
from engine.trainer.efficiency import PassMeter
from engine.trainer.learner import Learner, Share, StepResult
from engine.trainer.metrics import UpdateMeter
from engine.trainer.optimizers import initial_moments, make_optimizer, moments, set_rate, step
from engine.trainer.ranks import ALONE, Ranks
from engine.trainer.scorer import Base, Scorer, Unread
from engine.trainer.shards import Fingerprint, read_shards, stored_part, write_shards
from engine.trainer.traces import TraceRecorder


class Trainer(Learner):
    """Trainer of one model, or of one rank's shard of it; changes the weights in place.

    Args:
        model: trained in place; under LoRA it gets adapters and its own weights do not change.
        algorithm: the objective.
        config: optimizer settings; its ``threads`` is set as torch's thread count.
        max_context: the agent's limit in tokens, the objective's default normalisation length.
        seed: decides which groups share an optimizer step, and adapters' initial values.
        reference: the frozen reference policy of the KL term, where the objective has one; under LoRA None
            is the model without its adapters.
        ranks: this process's position among several; ``model`` is then sharded and no longer callable.

    Raises:
        ValueError: the objective has a KL term and there is no reference.
    """

    def __init__(
        self,
        model: LanguageModel | Unread,
        *,
        algorithm: AlgorithmConfig,
        config: TrainerConfig,
        max_context: int,
        seed: int,
        reference: LanguageModel | Unread | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        torch.set_num_threads(config.threads)
        super().__init__(algorithm, config, max_context=max_context, seed=seed)
        self._ranks = ranks
        self._passes = PassMeter()
        self._abandoned = threading.Event()
        self._model = model.model if isinstance(model, Unread) else model
        self._device = model.device if isinstance(model, Unread) else next(model.parameters()).device
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-shards")
        self._writer_group = dist.new_group(backend="gloo") if ranks.mesh is not None else None
        self._saving: Future[dict[str, Fingerprint]] | None = None
        self._saving_seconds = 0.0
        if config.lora_rank:
            from engine.models.adapters import add_adapters, reset_adapters  # peft takes seconds to import

            add_adapters(self._model, config, seed=seed)
        self._sizes = count_sizes(self._model)
        self._scorer = Scorer(
            model,
            precision=config.precision,
            ranks=ranks,
            recompute=config.activation_checkpointing,
            offload=config.cpu_offload,
        )
        if config.lora_rank:
            reset_adapters(self._model, seed)  # on the meta device, they had no memory before
        self._parameters = [p for p in self._scorer.parameters() if p.requires_grad]
        self._reference = self._frozen(reference)
        self._optimizer = make_optimizer(self._parameters, config)
        self._live = LiveWeights(self._model)

    def learn(self, share: Share) -> StepResult:
        """Make the optimizer steps of this rank's share; a collective among ranks.

        Raises:
            UpdateAbandonedError: ``abandon`` was called.
        """
        set_rate(self._optimizer, share.rate)
        meter = UpdateMeter(
            has_kl=has_kl_loss(self._algorithm),
            has_correction=needs_old_logprobs(self._algorithm),
        )
        plan = [[self._batch(row) for row in rows] for rows in share.steps]
        self._score_before(plan, share.temperature)
        recorder = TraceRecorder(share.traced)
        for batches in plan:
            self._step(batches, share.temperature, meter, recorder)
        passes, self._passes = self._passes, PassMeter()
        if self._ranks.mesh is not None:
            meter.reduce(counts=self._ranks.context_rank == 0)
            passes.reduce(self._device, counts=self._ranks.context_rank == 0)
            if share.traced:
                recorder.gather()
        saving_seconds, self._saving_seconds = self._saving_seconds, 0.0
        return StepResult(
            meter=meter,
            passes=passes,
            saving_seconds=saving_seconds,
            peak_flops=self._peak(),
            traces=recorder.traces(),
        )

    @torch.no_grad()
    def divergences(self, rows: Sequence[Row], temperature: float) -> dict[int, float]:
        """Return Σ KL over the sampled tokens of each ``Sample.trajectory_index`` in this rank's rows."""
        assert self._reference is not None
        sums: dict[int, float] = defaultdict(float)
        scorers = self._scorer, self._reference
        with self._passes.scoring(self._device):
            for batch in self._until_abandoned(self._batch(row) for row in rows):
                logprobs, reference = (self._score(scorer, batch, temperature) for scorer in scorers)
                terms = kl_estimate(logprobs, reference, self._algorithm.kl).double()
                totals = terms.new_zeros(len(batch.trajectory_indices)).index_add_(0, batch.rows, terms)
                for index, total in zip(batch.trajectory_indices, totals.tolist(), strict=True):
                    sums[index] += total
        return dict(sums)

    def abandon(self) -> None:
        """Abort an update before its next microbatch; called from another thread. Later use is rejected."""
        self._abandoned.set()

    def save(self, folder: Path) -> Future[dict[str, Fingerprint]]:
        """Start writing weights and optimizer state to ``folder``; the next optimizer step waits for it.

        Each rank writes its own shards and returns the fingerprints of its own files.

        Raises:
            UpdateAbandonedError: after ``abandon`` the state may be half of an update's.
        """
        self._raise_if_abandoned()
        self._saving = self._writer.submit(write_shards, folder, self.state(), self._writer_group)
        return self._saving

    def state(self) -> dict[str, Any]:
        """Return weights and optimizer state by name: the tensors themselves, or their shards.

        Under LoRA the weights are the adapters: the base is the run's frozen policy.
        """
        return {**self._weights(), "optimizer": moments(self._optimizer, self._trained())}

    def restore(self, folder: Path) -> None:
        """Read the optimizer's state and adapters, written by any number of ranks. Raises CheckpointError."""
        trained = self._trained()
        stored: set[str] = set()
        for name, entry in stored_part(folder, "optimizer").items():
            parameter = name.rpartition(".")[0]
            shape = entry.size if isinstance(entry, TensorStorageMetadata) else ()
            if parameter not in trained or shape not in ((), trained[parameter].shape):
                raise CheckpointError(
                    f"the state in {folder} does not belong to this model: it has {name} of shape {shape}"
                )
            stored.add(parameter)
        if bool(stored_part(folder, "adapters")) != bool(self._config.lora_rank):
            raise CheckpointError(
                f"the state in {folder} does not belong to this model: one has adapters, the other has none"
            )
        state: dict[str, Any] = {"optimizer": initial_moments(self._optimizer, trained, stored)}
        if self._config.lora_rank:
            state |= self._weights()
        read_shards(folder, state, self._writer_group)

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and values of the trained weights one by one; a collective among ranks."""
        for name, parameter in self._trained().items():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            yield name, whole

    @torch.no_grad()
    def score_row(self, row: Row) -> list[float]:
        """Return the log-probabilities of a row's targets at temperature 1; a collective among ranks."""
        logprobs: Tensor = self._scorer(self._batch(row), 1.0, entropy=False)[0]
        self._scorer.reshard()
        return logprobs.tolist()

    def close(self) -> None:
        """Finish writing and stop the writer's thread."""
        self._writer.shutdown()

    def _learn(self, shares: Sequence[Share]) -> StepResult:
        return self.learn(shares[self._ranks.data_rank])

    def _logprobs(self, row: Row) -> list[float]:
        return self.score_row(row)

    def _send_weights(self, consumer: WeightConsumer) -> Any:
        self._raise_if_abandoned()
        weights = self._stream(consumer.dtype)
        try:
            if self._ranks.is_first:
                return consumer(weights)
        except Exception as error:
            raise PublicationError(f"the weights were not sent: {describe_error(error)}") from error
        finally:
            for _ in weights.tensors:  # gathering each is a collective: other ranks wait for it
                pass

    def _stream(self, dtype: torch.dtype) -> WeightStream:
        self._scorer.reshard()
        if not self._config.lora_rank:
            return WeightStream(infos=self._live.infos(dtype), tensors=self._live.tensors(dtype))
        from engine.models.adapters import adapter_settings, adapter_tensors  # peft takes seconds to import

        named = adapter_tensors(self._model)
        return WeightStream(
            infos={name: TensorInfo(tuple(tensor.shape), dtype) for name, tensor in named.items()},
            tensors=((name, whole_tensor(tensor, dtype)) for name, tensor in named.items()),
            adapter=adapter_settings(self._model, self._config),
        )

    def _divergences(self, shares: Sequence[Sequence[Row]], temperature: float) -> dict[int, float]:
        return self.divergences(shares[self._ranks.data_rank], temperature)

    def _batch(self, row: Row) -> Microbatch:
        return make_microbatch(row, self._device, self._ranks)

    def _trained(self) -> dict[str, Tensor]:
        """Return the trained parameters by name, sharded among ranks."""
        self._scorer.reshard()
        return {name: p for name, p in self._scorer.model.named_parameters() if p.requires_grad}

    def _weights(self) -> dict[str, dict[str, Tensor]]:
        if not self._config.lora_rank:
            return {"model": stored_tensors(self._model)}
        from engine.models.adapters import adapter_parameters  # peft takes seconds to import

        return {"adapters": adapter_parameters(self._model)}

    def _frozen(self, reference: LanguageModel | Unread | None) -> Scorer | Base | None:
        if not needs_reference(self._algorithm):
            return None
        if reference is None and self._config.lora_rank:
            return Base(self._scorer)
        if reference is None:
            raise ValueError("the objective has a KL term: the trainer needs a reference policy")
        (reference.model if isinstance(reference, Unread) else reference).requires_grad_(False)
        config = self._config
        return Scorer(reference, precision=config.precision, ranks=self._ranks, offload=config.cpu_offload)

    @torch.no_grad()
    def _score_before(self, plan: Sequence[Sequence[Microbatch]], temperature: float) -> None:
        """Fill in log-probabilities of the old weights and the reference, where the objective needs them."""
        with self._passes.scoring(self._device):
            for batch in self._until_abandoned(batch for batches in plan for batch in batches):
                if needs_old_logprobs(self._algorithm):
                    batch.old_logprobs = self._score(self._scorer, batch, temperature)
                if self._reference is not None and has_kl_loss(self._algorithm):
                    batch.reference_logprobs = self._score(self._reference, batch, temperature)

    def _score(self, scorer: Scorer | Base, batch: Microbatch, temperature: float) -> Tensor:
        """Return log-probabilities without gradients."""
        self._passes.add_scoring(self._sizes, batch)
        logprobs: Tensor = scorer(batch, temperature, entropy=False)[0]
        return logprobs

    def _step(
        self,
        batches: Sequence[Microbatch],
        temperature: float,
        meter: UpdateMeter,
        recorder: TraceRecorder,
    ) -> None:
        if not batches:
            meter.skipped += 1
            return
        parts = [
            self._accumulate(batch, temperature, meter, recorder) for batch in self._until_abandoned(batches)
        ]
        meter.losses.append(math.fsum(parts))
        total = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        norm = (total.full_tensor() if isinstance(total, DTensor) else total).item()
        meter.norms.append(norm)
        if math.isfinite(norm):
            self._await_saving()
            step(self._optimizer)
            meter.steps += 1
        else:
            meter.nonfinite += 1
        self._optimizer.zero_grad()

    def _await_saving(self) -> None:
        """Wait for a checkpoint being written: it reads the weights in place."""
        if self._saving is None:
            return
        started = time.perf_counter()
        wait([self._saving])
        self._saving = None
        self._saving_seconds += time.perf_counter() - started

    def _accumulate(
        self, batch: Microbatch, temperature: float, meter: UpdateMeter, recorder: TraceRecorder
    ) -> float:
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
        recorder.add(batch, logprobs, entropies, step=len(meter.losses))
        self._passes.add_training(self._sizes, batch, checkpointing=self._config.activation_checkpointing)
        return parts.loss.item()

    def _until_abandoned(self, batches: Iterable[Microbatch]) -> Iterator[Microbatch]:
        for batch in batches:
            self._raise_if_abandoned()
            yield batch

    def _raise_if_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise UpdateAbandonedError("the update was abandoned: go on from the last checkpoint")

    def _peak(self) -> float | None:
        """Return the peak FLOP/s of all ranks' devices; None where it is unknown."""
        peak = peak_flops(self._device, DTYPES[self._config.precision])
        return None if peak is None else peak * self._ranks.size
