"""Plan of a training run's needs and costs, made before anything starts.

An iteration is rollouts → gradings → update → publication, one after the other or at the same time
(``schedules``), with evaluations between iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from engine.planning.rollouts import Limits, Phase, flow, simulate
from engine.planning.run_plan import RunPlan, Sandboxes, Time
from engine.planning.sampler import BYTES, Sampler
from engine.planning.schedules import Remedies, Work, overlapped, synchronous
from engine.planning.shapes import find_shape, is_tiny, model_sizes
from engine.planning.typical import typical_assumptions
from engine.planning.workload import Rollout, sample_rollouts

DEFAULT_GPU = "H100"
"""GPU of plans that name none; models made for CPUs are planned for a CPU."""


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
    needed = sum(group.count for group in devices)
    num = config.trainer.tasks_per_iteration * config.rollout.group_size
    rollouts, limits = _rollouts(config, num, sampler)
    phase = simulate(rollouts, num, limits, sampler.latency)
    replaced = _replacements(config, num, assume)
    collected = num + sum(replaced)
    staleness = config.schedule.staleness
    full = replace(limits, concurrent=min(limits.concurrent, num * (staleness + 1)))
    steady = flow(rollouts, full, sampler.latency)
    work = Work(
        update_s=_update_s(config, sizes, phase, num, sampler),
        publication_s=_publication_s(config, sizes, assume),
        is_shared=_take_turns(config),
    )
    remedies = _remedies(config, limits)
    if staleness:
        parts = overlapped(phase, steady, collected, full, work, remedies, staleness=staleness)
    else:
        replacements_s = sum(_phase_s(config, count, sampler) for count in replaced)
        parts = synchronous(phase, work, remedies, replacements_s=replacements_s)
    return RunPlan(
        name=config.recipe or config.name,
        model=config.policy.checkpoint,
        parameters=sizes.parameters,
        trained=sizes.trained,
        iterations=config.trainer.iterations,
        hardware=hardware or Hardware(gpu=gpu, count=needed),
        devices=devices,
        concurrent=round(full.concurrent),
        rollouts=collected,
        tokens=round(collected * sum(phase.contexts) / len(phase.contexts)),
        sampled=round(collected * phase.sampled),
        timed_out=phase.timed_out,
        sampling_s=(steady if staleness else phase).sampling_s,
        update_s=work.update_s,
        publication_s=work.publication_s,
        iteration=(
            *parts,
            Time(name="evaluations", seconds=_evaluations_s(config, sampler), remedy=_EVALUATION),
        ),
        sandboxes=_sandboxes(config, collected, full, assume),
        problems=tuple(_problems(config, devices, needed, hardware, sampler)),
        assumptions=assume,
        origins=basis.origins,
    )


_EVALUATION = "fewer evaluation.samples, or a larger evaluation.every"


def _replacements(config: TrainRun, num: int, assume: Assumptions) -> list[int]:
    """Return the rollouts of each round in which an iteration replaces uniform groups."""
    if not config.algorithm.dynamic_sampling:
        return []
    rounds = range(1, config.algorithm.max_resampling_rounds + 1)
    return [rollouts for n in rounds if (rollouts := round(num * assume.uniform_share**n))]


def _rollouts(
    config: TrainRun, num: int, sampler: Sampler, *, evaluation: bool = False
) -> tuple[list[Rollout], Limits]:
    """Return a sample of a phase's rollouts, and the limits they have."""
    agent = config.evaluation.agent(config.agent) if evaluation else config.agent
    has_sandboxes = _has_sandboxes(config)
    assume = sampler.assume if has_sandboxes else sampler.assume.model_copy(update=_NO_SANDBOX)
    rollouts = sample_rollouts(num, agent, config.grading, assume, evaluation=evaluation)
    reserved = sum(
        min(agent.max_context, (r.prompt + r.context) / 2 + agent.max_response) for r in rollouts
    ) / len(rollouts)
    room = [sampler.concurrent(reserved), config.rollout.max_concurrent]
    limits = Limits(
        concurrent=min(*room, config.sandbox.max_live) if has_sandboxes else min(room),
        starting=config.sandbox.max_starting,
        start_s=assume.sandbox_start_s,
        timeout_s=agent.rollout_timeout_s,
        grading=min(config.grading.max_parallel, config.sandbox.max_live),
    )
    return rollouts, limits


_NO_SANDBOX: Mapping[str, float] = {"sandbox_start_s": 0.0, "tool_s": 0.0, "grading_s": 0.0}


def _has_sandboxes(config: TrainRun) -> bool:
    return not isinstance(config.environment, FrozenLakeConfig)


def _remedies(config: TrainRun, limits: Limits) -> Remedies:
    bounds = {
        "rollout.max_concurrent": config.rollout.max_concurrent,
        "sandbox.max_live": config.sandbox.max_live,
    }
    bound = next((name for name, value in bounds.items() if limits.concurrent == value), None)
    sampler_remedy = (
        "more or larger samplers (policy.vllm.replicas, tensor_parallel), a smaller agent.max_response"
        if config.policy.engine == "vllm"
        else "policy.engine='vllm', or a larger policy.max_batch"
    )
    return Remedies(room=f"a larger {bound}" if bound else sampler_remedy, sampling=sampler_remedy)


def _take_turns(config: TrainRun) -> bool:
    """Return whether rollouts and updates compute on the same devices."""
    return config.policy.engine == "builtin" or config.policy.vllm.transfer == "ipc"


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
    total = (2 + between) * _phase_s(config, settings.samples, sampler, evaluation=True)
    if settings.train_samples:
        total += 2 * _phase_s(config, settings.train_samples, sampler, evaluation=True)
    return total / iterations


def _phase_s(config: TrainRun, num: int, sampler: Sampler, *, evaluation: bool = False) -> float:
    rollouts, limits = _rollouts(config, num, sampler, evaluation=evaluation)
    return simulate(rollouts, num, limits, sampler.latency).total_s


def _sandboxes(config: TrainRun, num: int, limits: Limits, assume: Assumptions) -> Sandboxes | None:
    if not _has_sandboxes(config):
        return None
    live = min(config.sandbox.max_live, round(limits.concurrent + limits.grading))
    tasks = min(config.dataset.limit or assume.dataset_tasks, assume.dataset_tasks)
    per_iteration = round(num / config.rollout.group_size)
    images = min(tasks, config.trainer.iterations * per_iteration)
    return Sandboxes(
        live=live,
        cores=live * assume.sandbox_cores,
        memory=live * config.sandbox.memory_mb * 2**20,
        starts=2 * num,
        images=images,
        images_per_iteration=min(tasks, per_iteration),
        disk=round(images * assume.image_gb * 1e9),
    )


def _problems(
    config: TrainRun,
    devices: tuple[Devices, ...],
    needed: int,
    hardware: Hardware | None,
    sampler: Sampler,
) -> list[str]:
    problems = [problem for group in devices if (problem := group.problem) is not None]
    ranks = config.trainer.data_parallel * config.trainer.context_parallel
    if hardware is not None and hardware.count < needed:
        problems.append(
            f"the run needs {needed} GPUs and there are {hardware.count}: lower trainer.data_parallel "
            f"({config.trainer.data_parallel}), trainer.context_parallel ({config.trainer.context_parallel}) "
            "or the GPUs of policy.vllm"
        )
    if config.policy.engine == "vllm" and sampler.cache_tokens() < config.longest_context:
        problems.append(
            f"the KV cache of a server holds {sampler.cache_tokens()} tokens, fewer than the longest "
            f"conversation ({config.longest_context}): raise policy.vllm.tensor_parallel or "
            "policy.vllm.gpu_memory"
        )
    if config.policy.engine == "vllm" and config.policy.vllm.transfer == "ipc" and ranks > 1:
        problems.append(
            f"policy.vllm.transfer is 'ipc', which supports one rank, but {ranks} train: use 'nccl' and "
            "separate GPUs for the servers"
        )
    return problems
