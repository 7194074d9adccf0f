"""Prompts in every tool format and tool set; published prompts stay unchanged."""

from __future__ import annotations

import hashlib

import pytest

from engine.agent.prompts import load_prompt, prompt_names
from engine.errors import ConfigError
from engine.tools.formats import ToolFormat
from engine.tools.schemas import LAKE_TOOLS, SWE_TOOLS, Tools
from engine.tools.tool_sets import OPENHANDS, R2E_GYM, ToolSet
from engine.types import Task

PUBLISHED = ("deepswe_rllm_v1", "deepswe_r2e_v1")
TASK = Task(
    id="1", instance_id="i", repo="r", base_commit="c", problem_statement="It {{workdir}} fails.", image="x"
)  # fmt: skip


def tools_of(name: str) -> Tools:
    return LAKE_TOOLS if name.startswith("frozenlake") else SWE_TOOLS


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("compact_v1", "0e2f8b010fe22287"),
        ("deepswe_v1", "adc2bd71d1011509"),
        ("deepswe_rllm_v1", "7df9ae30821b2072"),
        ("deepswe_r2e_v1", "995180bdcf19a8a2"),
        ("frozenlake_compact_v1", "9de2591fa9ae09c6"),
        ("frozenlake_v1", "d6c9d86ac8acf6f4"),
    ],
)
def test_prompts_in_use_keep_their_digest(name: str, digest: str) -> None:
    prompt = load_prompt(name, "xml", tools_of(name))
    text = f"{prompt.system}\0{prompt.user_template}"
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
    if name not in PUBLISHED:
        assert prompt.countdown(7) == "\n\nSteps Remaining: 7"
        assert prompt.countdown(1).startswith("\n\nSteps Remaining: 1. This is the last one: hand in")


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("tool_set", [R2E_GYM, OPENHANDS], ids=["r2e_gym", "openhands"])
def test_published_prompts_specify_every_tool_and_the_format(name: str, tool_set: ToolSet) -> None:
    prompt = load_prompt(name, "xml", tool_set.tools)
    for number, (tool_name, tool) in enumerate(tool_set.tools.items(), 1):
        assert f"---- BEGIN FUNCTION #{number}: {tool_name} ----" in prompt.system
        for position, parameter in enumerate(tool.parameters, 1):
            assert f"  {position}. {parameter.name} (" in prompt.system
    for text in ("<function=example_function_name>", "</parameter>\n</function>", "one function at a time"):
        assert text in prompt.system
    others = {name for known in (R2E_GYM, OPENHANDS) for name in known.tools} - set(tool_set.tools)
    text = prompt.system + prompt.user(TASK) + prompt.countdown(1) + prompt.token_warning
    assert not [other for other in others - {"search"} if f"`{other}`" in text or f"{other} tool" in text]
    assert "{{" not in prompt.system
    assert prompt.user(TASK).count("{{") == 1  # from the problem statement


def test_countdowns_follow_the_published_prompts() -> None:
    # rLLM counts the steps after the next one; R2E-Gym includes the next one.
    assert load_prompt("deepswe_rllm_v1", "xml").countdown(50) == "\nSteps Remaining: 49"
    assert load_prompt("deepswe_r2e_v1", "xml").countdown(50) == "\nSteps Remaining: 50"


@pytest.mark.parametrize("name", prompt_names())
def test_native_prompts_leave_tools_and_format_to_the_chat_template(name: str) -> None:
    tools = tools_of(name)
    prompt = load_prompt(name, "native", tools)
    assert [tool["function"]["name"] for tool in prompt.declarations] == list(tools)
    for text in ("<function", "<tool_call>", "<parameter", "BEGIN FUNCTION", "{{tools}}", "{{f", "\n\n\n"):
        assert text not in prompt.system
    assert "The tools:" not in prompt.system
    assert load_prompt(name, "xml", tools).declarations == ()


@pytest.mark.parametrize("tool_format", ["xml", "native"])
def test_content_hashes_differ_by_prompt_format_and_tool_set(tool_format: ToolFormat) -> None:
    names = [name for name in prompt_names() if tools_of(name) is SWE_TOOLS]
    hashes = [load_prompt(name, tool_format).content_hash for name in names]
    hashes += [
        load_prompt(name, tool_format, OPENHANDS.tools).content_hash for name in (*PUBLISHED, "compact_v1")
    ]
    hashes.append(load_prompt("deepswe_v1", {"xml": "native"}.get(tool_format, "xml")).content_hash)  # type: ignore[arg-type]
    assert len(set(hashes)) == len(hashes)
    with pytest.raises(ConfigError, match="known: compact_v1, deepswe_r2e_v1, deepswe_rllm_v1, deepswe_v1"):
        load_prompt("../compact_v1", tool_format)
