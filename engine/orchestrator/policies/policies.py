"""Factory of the configured policy. To add one: a case here, its settings in ``engine.config.policies``.

Models are imported only when needed: the oracle must not wait for torch.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from engine.config.policies import (
    EndpointPolicyConfig,
    NoopPolicyConfig,
    OraclePolicyConfig,
    PolicyConfig,
    ReplayPolicyConfig,
    TransformerPolicyConfig,
)
from engine.config.rollout import AgentConfig
from engine.config.run import TrainRun
from engine.errors import ConfigError, Problem
from engine.inference.base import Policy, TokenPolicy
from engine.inference.scripted.policies import NoopPolicy, OraclePolicy, ReplayPolicy
from engine.orchestrator.context import RunContext
from engine.tools.tool_sets import TOOL_SETS

if TYPE_CHECKING:
    from engine.inference.builtin.sampler import TransformerPolicy
    from engine.inference.endpoint.policy import EndpointPolicy
    from engine.models.base import LanguageModel
    from engine.trainer.async_trainer import AsyncTrainer

SPENDING_NAME = "spending.json"
"""File in the run folder with the money that its attempts have spent."""
_ONE_THREAD = 30_000_000
"""Number of parameters below which one thread samples a model on a CPU. Up to this size, two threads that
sleep while they wait are slower, with idle processors too (``bench.threads``)."""


async def open_run_policy(
    config: PolicyConfig, agent: AgentConfig, run: RunContext, *, version: int = 0
) -> Policy:
    """Open a run's policy for sampling only, engines included.

    Args:
        config: its settings.
        agent: format and names of its tool calls.
        run: this attempt.
        version: policy version recorded with every token.

    Raises:
        CheckpointError, ModelError: as ``open_policy``.
        ConfigError, PreflightError, PublicationError: as ``engine.orchestrator.policies.engines``.
    """
    if isinstance(config, TransformerPolicyConfig) and config.engine == "vllm":
        # The import takes seconds and would block the event loop.
        await asyncio.to_thread(importlib.import_module, "engine.orchestrator.policies.engines")
        from engine.orchestrator.policies.engines import open_sampling_engines

        return await open_sampling_engines(config, run, max_context=agent.max_context, version=version)
    return await asyncio.to_thread(open_policy, config, agent, run.home, run_dir=run.run_dir, version=version)


def open_policy(
    config: PolicyConfig, agent: AgentConfig, home: Path, *, run_dir: Path | None = None, version: int = 0
) -> Policy:
    """Open a policy for sampling in this process; a small model on a CPU sets torch to one thread.

    Args:
        config: its settings.
        agent: format and names of its tool calls.
        home: the data folder.
        run_dir: folder for a policy's state between attempts; None stores none.
        version: policy version recorded with every token of a model in this process.

    Raises:
        ConfigError: an endpoint is unknown to this process.
        CheckpointError: its checkpoint is missing or unusable.
        ModelError: the stored trajectories cannot be read.
    """
    match config:
        case TransformerPolicyConfig():
            return _transformer(config, agent, home, version)
        case EndpointPolicyConfig():
            return open_endpoint(config, run_dir)
        case OraclePolicyConfig():
            return OraclePolicy(tool_format=agent.tool_format, tool_set=TOOL_SETS[agent.tools])
        case NoopPolicyConfig():
            return NoopPolicy(tool_format=agent.tool_format, tool_set=TOOL_SETS[agent.tools])
        case ReplayPolicyConfig():
            return ReplayPolicy.from_file(Path(config.source))
        case _:
            assert_never(config)


def open_endpoint(config: EndpointPolicyConfig, run_dir: Path | None) -> EndpointPolicy:
    """Open a policy behind an endpoint; see ``open_policy``. Raises ConfigError."""
    from engine.inference.endpoint.keys import find_endpoint
    from engine.inference.endpoint.policy import EndpointPolicy

    book = run_dir / SPENDING_NAME if run_dir is not None else None
    return EndpointPolicy(config, find_endpoint(config.endpoint), book=book)


def open_trained_policy(config: TrainRun, trainer: AsyncTrainer) -> TransformerPolicy:
    """Return the sampler of the trainer's weights, or of a copy.

    A copy samples during updates, and in half precision where float32 matrices would be rounded for every
    token.
    """
    from engine.inference.builtin.sampler import TransformerPolicy
    from engine.models.builtin.transformer import Transformer
    from engine.models.precision import product_type, rounded_copy, weight_type

    model, is_sync = trainer.model, config.schedule.mode == "sync"
    _check_precision(config.policy, model)
    low = None if isinstance(model, Transformer) else product_type(config.sampling_precision)
    sampled = model
    if low is not None and weight_type(config.trainer) != low:
        sampled = rounded_copy(model, low)
    elif not is_sync:
        sampled = copy.deepcopy(model)
    on_cpu = model.head.weight.device.type == "cpu"
    return TransformerPolicy(
        sampled,
        trainer.chat,
        max_batch=config.policy.max_batch,
        low=low,
        trained=None if sampled is model else model,
        threads=len(os.sched_getaffinity(0)) if on_cpu and is_sync and _is_large(model) else None,
    )


def _transformer(
    config: TransformerPolicyConfig, agent: AgentConfig, home: Path, version: int
) -> TokenPolicy:
    import torch

    from engine.inference.builtin.sampler import TransformerPolicy
    from engine.models.loader import open_model
    from engine.models.precision import sampling_type

    cuda = torch.cuda.is_available()
    dtype = sampling_type(config.precision)
    opened = open_model(config.checkpoint, home=home, dtype=dtype, max_context=agent.max_context)
    _check_precision(config, opened.model)
    opened.model.to("cuda" if cuda else "cpu")
    if not cuda and not _is_large(opened.model):
        torch.set_num_threads(1)
    return TransformerPolicy(
        opened.model,
        opened.chat(),
        version=version,
        max_batch=config.max_batch,
        name=config.checkpoint,
    )


def _check_precision(config: TransformerPolicyConfig, model: LanguageModel) -> None:
    """Raise ConfigError where a precision is set that a built-in policy is not sampled in."""
    from engine.models.builtin.transformer import Transformer

    if config.precision == "bf16" and isinstance(model, Transformer):
        raise ConfigError(
            Problem(
                f"'{config.checkpoint}' is a built-in policy, which is sampled in f32: leave it out",
                "policy.precision",
            )
        )


def _is_large(model: LanguageModel) -> bool:
    return sum(weight.numel() for weight in model.parameters()) >= _ONE_THREAD
