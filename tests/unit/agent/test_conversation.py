"""The token-id conversation: exact prefixes, masks, nothing re-tokenised."""

from __future__ import annotations

import pytest

from engine.agent.conversation import Conversation, count_thinking_tokens
from engine.agent.prompts import load_prompt, prompt_names
from engine.errors import ConfigError
from engine.inference.base import Generation
from engine.models.builtin.bytes_tokenizer import BytesTokenizer
from engine.types import Task

TOKENIZER = BytesTokenizer()


def generation(text: str, *, version: int = 3) -> Generation:
    ids = (*TOKENIZER.encode(text), TOKENIZER.im_end)
    return Generation(ids=ids, logprobs=tuple(-0.5 for _ in ids), versions=(version,) * len(ids))


def test_columns_tell_sampled_tokens_from_the_rest() -> None:
    conversation = Conversation(TOKENIZER, system="be <|im_end|> good", user="hi")
    prompt = len(conversation)
    conversation.append_generation(generation("act"), step=0)
    assert conversation.append_observation("seen", step=0)
    conversation.append_generation(generation("on", version=4), step=1)
    record = conversation.record()
    assert TOKENIZER.decode(record.ids.tolist()) == (
        "<|im_start|>system\nbe <|im_end|> good<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nact<|im_end|>\n<|im_start|>user\nseen<|im_end|>\n"
        "<|im_start|>assistant\non<|im_end|>"
    )
    assert record.ids.tolist().count(TOKENIZER.im_end) == 5
    assert TOKENIZER.decode(record.ids[record.mask].tolist()) == "act<|im_end|>on<|im_end|>"
    assert record.versions[record.mask].tolist() == [3] * 4 + [4] * 3
    assert record.logprobs.tolist() == [-0.5 if sampled else 0.0 for sampled in record.mask]
    assert set(record.versions[~record.mask].tolist()) == {-1}
    assert record.steps[:prompt].tolist() == [-1] * prompt
    assert set(record.steps[prompt:].tolist()) == {0, 1}


def test_every_prompt_continues_the_one_before() -> None:
    conversation = Conversation(TOKENIZER, system="", user="hi")
    first = tuple(conversation.prompt_ids)
    conversation.append_generation(generation("a"), step=0)
    conversation.append_observation("b", step=0)
    assert tuple(conversation.prompt_ids)[: len(first)] == first
    assert first[-11:] == (TOKENIZER.im_start, *TOKENIZER.encode("assistant\n"))


def test_a_turn_without_its_end_is_closed_by_template_tokens() -> None:
    conversation = Conversation(TOKENIZER, system="", user="")
    start = len(conversation)
    conversation.append_generation(Generation(ids=(65,), logprobs=(0.0,), versions=(0,)), step=0)
    conversation.append_observation("", step=0)
    record = conversation.record()
    assert record.ids[start : start + 2].tolist() == [65, TOKENIZER.im_end]
    assert record.mask[start : start + 2].tolist() == [True, False]


def test_observation_that_leaves_no_room_is_not_appended() -> None:
    conversation = Conversation(TOKENIZER, system="", user="")
    conversation.append_generation(generation("a"), step=0)
    before = len(conversation)
    grown = before + len("\n") + 1 + len("user\nxx") + 1 + len("\n") + 1 + len("assistant\n")
    assert not conversation.append_observation("xx", step=0, max_length=grown)
    assert len(conversation) == before
    assert conversation.append_observation("xx", step=0, max_length=grown + 1)
    assert len(conversation) == grown


def test_uneven_generation_is_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Conversation(TOKENIZER, system="", user="").append_generation(
            Generation(ids=(1, 2), logprobs=(0.0,), versions=(0, 0)), step=0
        )


def test_thinking_tokens_are_those_between_the_markers() -> None:
    start, end = TOKENIZER.think_start, TOKENIZER.think_end
    assert count_thinking_tokens(TOKENIZER, [1, start, 2, 3, end, 4]) == 2
    assert count_thinking_tokens(TOKENIZER, [start, 2, 3]) == 2
    assert count_thinking_tokens(TOKENIZER, [1, 2]) == 0


def task(statement: str) -> Task:
    return Task(
        id="0" * 16, instance_id="t", repo="r", base_commit="c", problem_statement=statement, image="local:x"
    )


def test_compact_prompt_is_the_statement_alone() -> None:
    prompt = load_prompt("compact_v1", "xml")
    assert prompt.system == ""
    assert prompt.user(task("a {{workdir}} {b}\n")) == "a {{workdir}} {b}\n"
    assert prompt.observations == "compact"


def test_full_prompt_names_every_tool_and_its_format() -> None:
    xml, calling = load_prompt("deepswe_v1", "xml"), load_prompt("deepswe_v1", "native")
    for name in ("file_editor", "execute_bash", "search", "finish"):
        assert f"{name}: " in xml.system
        assert f'"name": "{name}"' in calling.system
    assert "<parameter=" in xml.system
    assert "<tool_call>" in calling.system
    assert "{{" not in xml.system + calling.system
    user = xml.user(task("It breaks {{format}}"))
    assert "It breaks {{format}}" in user
    assert "/testbed" in user


def test_prompt_hashes_tell_prompts_apart() -> None:
    prompts = [load_prompt(name, f) for name in prompt_names() for f in ("xml", "native")]
    assert len({prompt.content_hash for prompt in prompts}) == len(prompts) == 8
    with pytest.raises(ConfigError, match="known: compact_v1, deepswe_v1"):
        load_prompt("../compact_v1", "xml")
