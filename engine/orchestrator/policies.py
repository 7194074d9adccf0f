"""Factory of the configured policy. To add one: a case here, its settings in ``engine.config.policies``.

Models are imported only when needed: the oracle must not wait for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from engine.config.policies import (
    NoopPolicyConfig,
    OraclePolicyConfig,
    PolicyConfig,
    ReplayPolicyConfig,
    TransformerPolicyConfig,
)
from engine.config.rollout import AgentConfig
from engine.inference.base import Policy, TokenPolicy
from engine.inference.scripted.policies import NoopPolicy, OraclePolicy, ReplayPolicy
from engine.tools.tool_sets import TOOL_SETS


def open_policy(config: PolicyConfig, agent: AgentConfig, home: Path) -> Policy:
    """Open a policy for sampling only.

    Raises:
        CheckpointError: its checkpoint is missing or unusable.
        ModelError: the stored trajectories cannot be read.
    """
    match config:
        case TransformerPolicyConfig():
            return _transformer(config, agent, home)
        case OraclePolicyConfig():
            return OraclePolicy(tool_format=agent.tool_format, tool_set=TOOL_SETS[agent.tools])
        case NoopPolicyConfig():
            return NoopPolicy(tool_format=agent.tool_format, tool_set=TOOL_SETS[agent.tools])
        case ReplayPolicyConfig():
            return ReplayPolicy.from_file(Path(config.source))
        case _:
            assert_never(config)


def _transformer(config: TransformerPolicyConfig, agent: AgentConfig, home: Path) -> TokenPolicy:
    import torch

    from engine.inference.builtin.sampler import TransformerPolicy
    from engine.models.opening import open_model

    cuda = torch.cuda.is_available()
    dtype = torch.bfloat16 if cuda else torch.float32
    opened = open_model(config.checkpoint, home=home, dtype=dtype, max_context=agent.max_context)
    opened.model.to("cuda" if cuda else "cpu")
    return TransformerPolicy(opened.model, opened.chat(), max_batch=config.max_batch, name=config.checkpoint)
