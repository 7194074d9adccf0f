"""Rollouts of the oracle in every family's format, at token level and with real tools."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from engine.config.rollout import AgentConfig
from engine.errors import CheckpointError, ConfigError
from engine.inference.scripted.policies import OraclePolicy
from engine.inference.scripted.tokens import TokenizedPolicy
from engine.models.builtin.architectures import SHIPPED
from engine.models.builtin.tokenizer import load_tokenizer
from engine.models.chat.chatml import ChatML
from engine.models.chat.factory import open_chat
from engine.models.families import family_of
from engine.rollout import GroupRequest
from engine.tools.formats import ToolFormat
from engine.types import TerminationReason
from tests.builders.rollout_builders import SOURCE, make_row, swe_scheduler
from tests.fakes.memory_sandbox import MemoryBackend
from tests.unit.models.chat.chat_templates import chat_tokenizer, open_family

CASES = [
    ("qwen2", "xml", "keep"), ("qwen3", "native", "drop"), ("qwen3_moe", "native", "keep"),
    ("llama", "xml", "drop"), ("mistral", "native", "drop"), ("gpt_oss", "native", "keep"),
    ("gemma3_text", "xml", "drop"), ("glm4_moe", "native", "drop"), ("deepseek", "xml", "keep"),
]  # fmt: skip
"""Every family; both tool formats with and without the thinking of earlier turns."""


@pytest.mark.parametrize(("family", "tool_format", "history"), CASES)
async def test_oracle_solves_a_task_in_any_format(family: str, tool_format: ToolFormat, history: str) -> None:
    chat = open_family(family)
    agent = AgentConfig.model_validate(
        {"prompt": "deepswe_v1", "tool_format": tool_format, "thinking_history": history, "max_steps": 6}
    )
    backend = MemoryBackend({"/testbed/pkg/m.py": SOURCE.encode()})
    policy = TokenizedPolicy(OraclePolicy(tool_format=tool_format), chat)
    (group,) = await swe_scheduler(backend, policy, agent=agent).collect(
        [GroupRequest(row=make_row(), iteration=0, phase="train", size=1)]
    )
    (trajectory,) = group.trajectories
    steps, tokens = trajectory.steps, trajectory.tokens
    assert (trajectory.termination, trajectory.error) == (TerminationReason.SUBMITTED, "")
    assert trajectory.reward == 1.0
    assert [step.error for step in steps] == [""] * len(steps)
    assert [step.thought for step in steps] == ["look at lines 1-2", "line 1: the change", "done"]
    assert all(step.thinking_tokens for step in steps)
    assert tokens.num_sampled == sum(step.generated_tokens for step in steps)
    assert len(tokens.samples()) == (1 if history == "keep" else len(steps))
    for sample in tokens.samples():
        text = chat.tokenizer.decode(sample.ids.tolist())
        assert text.count("f subtracts") == 1
        assert (text.count("look at lines") == 1) is (history == "keep" or sample == tokens.samples()[0])


def test_a_format_without_function_calls_is_refused_before_any_rollout() -> None:
    agent = AgentConfig(prompt="deepswe_v1", tool_format="native")
    with pytest.raises(
        ConfigError, match=r"cannot begin with prompt deepswe_v1: .* use agent.tool_format 'xml'"
    ):
        swe_scheduler(
            MemoryBackend({}), TokenizedPolicy(OraclePolicy(), open_family("gemma3_text")), agent=agent
        )


def test_eos_tokens_of_the_generation_config_become_stop_ids(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer("qwen2")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 0]}')
    chat = open_chat(tokenizer, family_of("qwen2"), tmp_path)
    assert {chat.tokenizer.decode([i]) for i in chat.stop_ids} == {"<|im_end|>", "<|endoftext|>"}
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read .*generation_config.json"):
        open_chat(tokenizer, family_of("qwen2"), tmp_path)


async def test_builtin_policy_rollouts_have_the_tokens_of_the_warm_start() -> None:
    """Compare a rollout in the shipped policy's format with the token ids of its warm start."""
    chat = open_chat(load_tokenizer(SHIPPED / "quickstart"), family_of("qwen3"), None)
    assert isinstance(chat, ChatML)
    backend = MemoryBackend({"/testbed/pkg/m.py": SOURCE.encode()})
    (group,) = await swe_scheduler(
        backend, TokenizedPolicy(OraclePolicy(), chat), agent=AgentConfig()
    ).collect([GroupRequest(row=make_row(), iteration=0, phase="train", size=1)])
    tokens = group.trajectories[0].tokens
    columns = [tokens.ids.tolist(), tokens.mask.astype(int).tolist(), tokens.steps.tolist()]
    assert len(tokens) == 241
    assert hashlib.sha256(repr(columns).encode()).hexdigest()[:16] == "89389d4c2dc51a49"
