"""Plan of a training run: what it needs and what it costs, before anything starts.

The model is synchronous, as the orchestrator is: rollouts → gradings → update → publication, and evaluations
between iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.algorithms.terms import needs_old_logprobs, needs_reference
from engine.config.environment import FrozenLakeConfig
from engine.config.run import AnyRun, TrainRun
from engine.errors import ConfigError
from engine.models.arithmetic import pass_flops
from engine.models.sizes import ModelSizes
from engine.planning.assumptions import Assumptions, Basis, gather_assumptions
from engine.planning.devices import Devices, plan_devices, update_memory
from engine.planning.hardware import CPU, GPUS, Gpu, Hardware, parse_hardware
from engine.planning.rollouts import Limits, Phase, simulate
from engine.planning.run_plan import RunPlan, Sandboxes, Time
from engine.planning.sampler import BYTES, Sampler
from engine.planning.shapes import find_shape, is_tiny, model_sizes
from engine.planning.typical import typical_assumptions
from engine.planning.workload import sample_rollouts

SAMPLING, UPDATE = "sampling", "update"
"""Names of the parts of an iteration that finished runs measure."""
DEFAULT_GPU = "H100"
"""GPU of plans that name none; models made for CPUs are planned for one."""


def plan_configured(config: AnyRun, *, gpus: str | None, assumptions: Mapping[str, Any]) -> RunPlan:
    """Return the plan of a run by default assumptions.

    Args:
        config: a run of kind ``train``.
        gpus: ``COUNTxNAME``; None: as many H100 as the run needs, or a CPU for models made for one.
        assumptions: those that replace defaults, by name.

    Raises:
        ConfigError: an unknown GPU or assumption, or as ``plan_run``.
    """
    config = train_run(config)
    hardware = parse_hardware(gpus) if gpus else None
    return plan_run(
        config, hardware=hardware, basis=gather_assumptions(typical_assumptions(config), assumptions)
    )


def train_run(config: AnyRun) -> TrainRun:
    """Return the configuration if it can be planned. Raises ConfigError for another kind of run."""
    if not isinstance(config, TrainRun):
        raise ConfigError(f"only runs of kind 'train' can be planned; this is of kind '{config.kind}'")
    return config


def planned_gpu(config: TrainRun, hardware: Hardware | None) -> Gpu:
    """Return the GPU that a run is planned for, or the CPU."""
    if hardware is not None:
        return hardware.gpu
    return GPUS[CPU if is_tiny(config.policy.checkpoint) else DEFAULT_GPU]


def plan_run(config: AnyRun, *, hardware: Hardware | None = None, basis: Basis | None = None) -> RunPlan:
    """Return the plan of a run.

    Args:
        config: a run of kind ``train``.
        hardware: all its GPUs; None: as many H100 as it needs, or a CPU for models made for one.
        basis: assumptions; None: the defaults.

    Raises:
        ConfigError: another kind of run, or a model that the planner does not know.
    """
    config = train_run(config)
    basis = basis or gather_assumptions(typical_assumptions(config), {})
    assume, gpu = basis.assume, planned_gpu(config, hardware)
    shape = find_shape(config.policy.checkpoint)
    sizes = model_sizes(shape, config.trainer)
    sampler = Sampler(shape=shape, sizes=sizes, policy=config.policy, gpu=gpu, assume=assume)
    devices = plan_devices(config, update_memory(config, shape, sizes, gpu.device), sampler)
    needed = sum(one.count for one in devices)
    num = config.trainer.tasks_per_iteration * config.rollout.group_size
    phase, limits = _phase(config, num, sampler)
    return RunPlan(
        name=config.recipe or config.name,
        model=config.policy.checkpoint,
        parameters=sizes.parameters,
        trained=sizes.trained,
        iterations=config.trainer.iterations,
        hardware=hardware or Hardware(gpu=gpu, count=needed),
        devices=devices,
        concurrent=round(min(limits.concurrent, num)),
        rollouts=num,
        tokens=round(num * sum(phase.contexts) / len(phase.contexts)),
        sampled=round(num * phase.sampled),
        timed_out=phase.timed_out,
        iteration=(
            *_rollout_times(config, phase, limits, sampler),
            Time(name=UPDATE, seconds=_update_s(config, sizes, phase, num, sampler), remedy=_FASTER_UPDATE),
            Time(name="publication", seconds=_publication_s(config, sizes, assume), remedy=_PUBLICATION),
            Time(name="evaluations", seconds=_evaluations_s(config, sampler), remedy=_EVALUATION),
        ),
        sandboxes=_sandboxes(config, num, limits, assume),
        problems=tuple(_problems(config, devices, needed, hardware, sampler)),
        assumptions=assume,
        origins=basis.origins,
    )


_FASTER_UPDATE = "more trainer GPUs (trainer.data_parallel), or fewer and shorter trajectories"
_PUBLICATION = "policy.vllm.transfer='nccl'"
_EVALUATION = "fewer evaluation.samples, or a larger evaluation.every"


def _phase(config: TrainRun, num: int, sampler: Sampler, *, evaluation: bool = False) -> tuple[Phase, Limits]:
    """Return the times of a phase of rollouts, and the limits it has."""
    agent = config.evaluation.agent(config.agent) if evaluation else config.agent
    has_sandboxes = _has_sandboxes(config)
    assume = sampler.assume if has_sandboxes else sampler.assume.model_copy(update=_NO_SANDBOX)
    rollouts = sample_rollouts(num, agent, config.grading, assume, evaluation=evaluation)
    reserved = sum(
        min(agent.max_context, (one.prompt + one.context) / 2 + agent.max_response) for one in rollouts
    ) / len(rollouts)
    room = [sampler.concurrent(reserved), config.rollout.max_concurrent]
    limits = Limits(
        concurrent=min(*room, config.sandbox.max_live) if has_sandboxes else min(room),
        starting=config.sandbox.max_starting,
        start_s=assume.sandbox_start_s,
        timeout_s=agent.rollout_timeout_s,
        grading=min(config.grading.max_parallel, config.sandbox.max_live),
    )
    return simulate(rollouts, num, limits, sampler.latency), limits


_NO_SANDBOX: Mapping[str, float] = {"sandbox_start_s": 0.0, "tool_s": 0.0, "grading_s": 0.0}


def _has_sandboxes(config: TrainRun) -> bool:
    return not isinstance(config.environment, FrozenLakeConfig)


def _rollout_times(config: TrainRun, phase: Phase, limits: Limits, sampler: Sampler) -> tuple[Time, ...]:
    bounds = {
        "rollout.max_concurrent": config.rollout.max_concurrent,
        "sandbox.max_live": config.sandbox.max_live,
    }
    bound = next((name for name, value in bounds.items() if limits.concurrent == value), None)
    in_sampler = (
        "more or larger samplers (policy.vllm.replicas, tensor_parallel), a smaller agent.max_response"
        if sampler.policy.engine == "vllm"
        else "policy.engine='vllm', or a larger policy.max_batch"
    )
    times = {
        "wait for room": (phase.room_s, f"a larger {bound}" if bound else in_sampler),
        "sandbox start": (phase.start_s, "a larger sandbox.max_starting, warm sandboxes"),
        SAMPLING: (phase.sampling_s, in_sampler),
        "tools": (phase.tools_s, "a smaller agent.command_timeout_s, more cores for sandboxes"),
        "slowest rollouts": (
            phase.slowest_s,
            "a smaller agent.rollout_timeout_s or agent.max_context: a synchronous iteration waits for all",
        ),
        "grading after the last rollout": (
            phase.grading_s,
            "a larger grading.max_parallel, a smaller grading.timeout_s",
        ),
    }
    return tuple(Time(name=name, seconds=time, remedy=remedy) for name, (time, remedy) in times.items())


def _update_s(config: TrainRun, sizes: ModelSizes, phase: Phase, num: int, sampler: Sampler) -> float:
    """Return the time of all passes of the trainer over an iteration's trajectories."""
    assume, trainer = sampler.assume, config.trainer
    pieces = [(context, context) for context in phase.contexts]
    targets = round(phase.sampled * len(pieces))
    scorings = needs_old_logprobs(config.algorithm) + needs_reference(config.algorithm)
    update = pass_flops(sizes, pieces, targets, training=True).model
    scoring = pass_flops(sizes, pieces, targets, training=False).model
    flops = (assume.trained_share * update + scorings * scoring) * num / len(pieces)
    mfu = assume.mfu
    if sampler.shape.experts:
        mfu = assume.mfu_experts_lora if trainer.lora_rank else assume.mfu_experts
    return flops / (mfu * sampler.gpu.flops * trainer.data_parallel * trainer.context_parallel)


def _publication_s(config: TrainRun, sizes: ModelSizes, assume: Assumptions) -> float:
    alone = config.trainer.data_parallel * config.trainer.context_parallel == 1
    if config.policy.engine == "builtin" and alone:
        return 0.0  # trainer and sampler share the weights
    files = config.policy.engine == "vllm" and (
        config.policy.vllm.transfer == "disk" or bool(config.trainer.lora_rank)
    )
    bandwidth = assume.publish_files_bandwidth if files else assume.publish_bandwidth
    return BYTES * (sizes.trained if config.trainer.lora_rank else sizes.parameters) / bandwidth


def _evaluations_s(config: TrainRun, sampler: Sampler) -> float:
    """Return the time of all evaluations, per iteration."""
    settings, iterations = config.evaluation, config.trainer.iterations
    between = (iterations - 1) // settings.every if settings.every else 0
    total = (2 + between) * _phase(config, settings.samples, sampler, evaluation=True)[0].total_s
    if settings.train_samples:
        total += 2 * _phase(config, settings.train_samples, sampler, evaluation=True)[0].total_s
    return total / iterations


def _sandboxes(config: TrainRun, num: int, limits: Limits, assume: Assumptions) -> Sandboxes | None:
    if not _has_sandboxes(config):
        return None
    live = min(config.sandbox.max_live, round(min(limits.concurrent, num) + limits.grading))
    tasks = min(config.dataset.limit or assume.dataset_tasks, assume.dataset_tasks)
    images = min(tasks, config.trainer.iterations * config.trainer.tasks_per_iteration)
    return Sandboxes(
        live=live,
        cores=live * assume.sandbox_cores,
        memory=live * config.sandbox.memory_mb * 2**20,
        starts=2 * num,
        images=images,
        images_per_iteration=min(tasks, config.trainer.tasks_per_iteration),
        disk=round(images * assume.image_gb * 1e9),
    )


def _problems(
    config: TrainRun,
    devices: tuple[Devices, ...],
    needed: int,
    hardware: Hardware | None,
    sampler: Sampler,
) -> list[str]:
    found = [problem for one in devices if (problem := one.problem) is not None]
    ranks = config.trainer.data_parallel * config.trainer.context_parallel
    if hardware is not None and hardware.count < needed:
        found.append(
            f"the run needs {needed} GPUs and there are {hardware.count}: lower trainer.data_parallel "
            f"({config.trainer.data_parallel}), trainer.context_parallel ({config.trainer.context_parallel}) "
            "or the GPUs of policy.vllm"
        )
    if config.policy.engine == "vllm" and sampler.cache_tokens() < config.longest_context:
        found.append(
            f"the KV cache of a server holds {sampler.cache_tokens()} tokens, fewer than the longest "
            f"conversation ({config.longest_context}): raise policy.vllm.tensor_parallel or "
            "policy.vllm.gpu_memory"
        )
    if config.policy.engine == "vllm" and config.policy.vllm.transfer == "ipc" and ranks > 1:
        found.append(
            f"policy.vllm.transfer is 'ipc', which one rank can use, but {ranks} train: use 'nccl' and "
            "GPUs of their own for the servers"
        )
    return found
