"""Memory of each kind of GPU of a run: trainer, sampler, or both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.algorithms.terms import needs_reference
from engine.config.run import TrainRun
from engine.models.memory.plan import GIB, Device, MemoryPlan, Part, largest_parts, plan_memory
from engine.models.sizes import ModelSizes
from engine.planning.sampler import BYTES, Sampler
from engine.planning.shapes import Shape, activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """GPUs that do the same work."""

    work: str
    count: int
    parts: tuple[Part, ...]
    limit: int
    """Memory of a GPU, bytes."""

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def problem(self) -> str | None:
        """Return the reason why the parts do not fit, and what to change; None if they fit."""
        if self.total <= self.limit:
            return None
        return (
            f"{self.work} needs {self.total / GIB:.1f} GiB on each GPU, which has "
            f"{self.limit / GIB:.1f} GiB. The largest parts: {largest_parts(self.parts)}"
        )


def update_memory(run: TrainRun, shape: Shape, sizes: ModelSizes, device: Device) -> MemoryPlan:
    """Return the memory of an update on each rank."""
    return plan_memory(
        sizes,
        activations(shape, run.trainer),
        run.trainer,
        longest=run.agent.max_context,
        device=device,
        reference=needs_reference(run.algorithm),
    )


def plan_devices(run: TrainRun, update: MemoryPlan, sampler: Sampler) -> tuple[Devices, ...]:
    """Return the GPUs that a run needs, by their work."""
    limit, ranks = sampler.gpu.memory, update.ranks
    if run.policy.engine == "vllm":
        servers = sampler.replicas * sampler.width
        if run.policy.vllm.transfer != "ipc":
            return (
                Devices(work="trainer", count=ranks, parts=update.parts, limit=limit),
                Devices(work="sampler", count=servers, parts=tuple(_server(sampler)), limit=limit),
            )
        both = (*update.parts, *_server(sampler))
        return (Devices(work="trainer and sampler", count=max(ranks, servers), parts=both, limit=limit),)
    first = (*update.parts, *_builtin(run, sampler, own_copy=ranks > 1 or _samples_copy(run)))
    devices = [Devices(work="trainer and sampler", count=1, parts=first, limit=limit)]
    if ranks > 1:
        devices.append(Devices(work="trainer", count=ranks - 1, parts=update.parts, limit=limit))
    return tuple(devices)


def _samples_copy(run: TrainRun) -> bool:
    """Return whether the built-in sampler has weights beside the trainer's."""
    is_rounded = run.sampling_precision == "bf16" and not run.trainer.lora_rank
    return is_rounded or run.schedule.mode != "sync"


def _server(sampler: Sampler) -> Iterator[Part]:
    """Yield the parts of a vLLM server."""
    share = "policy.vllm.gpu_memory"
    yield Part(name="sampler: weights", bytes=sampler.weights, remedy="a larger policy.vllm.tensor_parallel")
    yield Part(name="sampler: KV cache", bytes=sampler.cache, remedy=f"a smaller {share}")
    reserve = round(sampler.assume.sampler_reserve * sampler.gpu.memory)
    yield Part(name="sampler: workspace", bytes=reserve, remedy=f"a smaller {share}")


def _builtin(run: TrainRun, sampler: Sampler, *, own_copy: bool) -> Iterator[Part]:
    """Yield the parts of the built-in sampler, which keeps the caches of its whole batch."""
    itemsize = BYTES if run.sampling_precision == "bf16" else 2 * BYTES
    if own_copy:
        yield Part(
            name="sampler: weights",
            bytes=itemsize * sampler.sizes.parameters,
            remedy="policy.engine='vllm' with GPUs of its own",
        )
    values = itemsize * sampler.shape.cache_values * run.longest_context
    yield Part(
        name="sampler: KV cache",
        bytes=values * run.policy.max_batch,
        remedy="a smaller policy.max_batch or agent.max_context",
    )
