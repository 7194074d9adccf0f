"""The token-id conversation: exact prefixes, masks, nothing re-tokenised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.agent.budget import cap_tokens
from engine.agent.token_conversation import TokenConversation
from engine.inference.base import Generation
from engine.models.chat.base import Chat, Reply
from engine.models.chat.chatml import ChatML
from tests.fakes.bytes_tokenizer import BytesTokenizer

TOKENIZER = BytesTokenizer()
CHAT = ChatML(TOKENIZER)


def generation(text: str, *, version: int = 3) -> Generation:
    ids = CHAT.reply_ids(text)
    return Generation(ids=tuple(ids), logprobs=tuple(-0.5 for _ in ids), versions=(version,) * len(ids))


def start(
    *, system: str = "", user: str = "", chat: Chat = CHAT, keep_thinking: bool = True
) -> TokenConversation:
    messages = [{"role": "system", "content": system}] if system else []
    return TokenConversation(
        chat, [*messages, {"role": "user", "content": user}], keep_thinking=keep_thinking
    )


def answer(conversation: TokenConversation, text: str, *, step: int = 0) -> None:
    messages = [{"role": "user", "content": text}]
    conversation.append(conversation.continuation(messages), step=step)


def test_record_columns_mark_sampled_tokens() -> None:
    conversation = start(system="be <|im_end|> good", user="hi")
    prompt = len(conversation)
    conversation.append_generation(generation("act"), step=0)
    answer(conversation, "seen")
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
    assert conversation.forks == 0


def test_truncated_turns_are_closed_by_template_tokens() -> None:
    conversation = start()
    begin = len(conversation)
    conversation.append_generation(Generation(ids=(65,), logprobs=(0.0,), versions=(0,)), step=0)
    answer(conversation, "")
    record = conversation.record()
    assert record.ids[begin : begin + 2].tolist() == [65, TOKENIZER.im_end]
    assert record.mask[begin : begin + 2].tolist() == [True, False]
    with pytest.raises(ValueError, match="differ in length"):
        conversation.append_generation(Generation(ids=(1, 2), logprobs=(0.0,), versions=(0, 0)), step=0)


def test_the_length_of_a_continuation_is_known_before_it_is_appended() -> None:
    conversation = start()
    conversation.append_generation(generation("a"), step=0)
    before = len(conversation)
    grown = before + len("\n") + 1 + len("user\nxx") + 1 + len("\n") + 1 + len("assistant\n")
    continuation = conversation.continuation([{"role": "user", "content": "xx"}])
    assert (len(conversation), continuation.length, continuation.forked) == (before, grown, False)
    conversation.append(continuation, step=0)
    assert len(conversation) == grown


def test_dropped_thinking_forks_the_conversation() -> None:
    """Each sampled token stays in exactly one sample, and no later prompt shows earlier thinking."""
    conversation = start(user="hi", keep_thinking=False)
    first = len(conversation)
    conversation.append_generation(generation("<think>why</think>act"), step=0)
    answer(conversation, "seen", step=0)
    assert conversation.forks == 1
    assert TOKENIZER.decode(conversation.prompt_ids) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nact<|im_end|>\n"
        "<|im_start|>user\nseen<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(conversation) == len(conversation.prompt_ids)
    conversation.append_generation(generation("plain"), step=1)
    answer(conversation, "more", step=1)
    assert conversation.forks == 1
    conversation.append_generation(generation("<think>again</think>end"), step=2)
    record = conversation.record()
    sampled = TOKENIZER.decode(record.ids[record.mask].tolist())
    assert sampled == "<think>why</think>act<|im_end|>plain<|im_end|><think>again</think>end<|im_end|>"
    assert record.starts.tolist() == [0, first + len(CHAT.reply_ids("<think>why</think>act"))]
    assert [TOKENIZER.decode(sample.ids.tolist()) for sample in record.samples()] == [
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>why</think>act<|im_end|>",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nact<|im_end|>\n"
        "<|im_start|>user\nseen<|im_end|>\n<|im_start|>assistant\nplain<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>again</think>end<|im_end|>",
    ]


def test_templates_without_continuations_fork_the_conversation() -> None:
    class Unextendable(ChatML):
        def extend(self, *_: Any) -> None:
            return None

    conversation = start(user="hi", chat=Unextendable(TOKENIZER))
    conversation.append_generation(generation("<think>why</think>act"), step=0)
    continuation = conversation.continuation([{"role": "user", "content": "seen"}])
    assert continuation.forked
    assert continuation.length == len(continuation.ids)


def parse(text: str) -> Reply:
    return CHAT.parse(CHAT.reply_ids(text))


def test_thinking_is_parsed_only_at_the_beginning() -> None:
    reply = parse("<think>abc</think>\n\ndo it")
    assert (reply.thinking, reply.content, reply.thinking_tokens) == ("abc", "\n\ndo it", 3)
    assert reply.text == "<think>abc</think>\n\ndo it"
    assert reply.thinking_closed
    cut = parse("<think>abc")
    assert (cut.thinking, cut.content, cut.thinking_tokens, cut.thinking_closed) == ("abc", "", 3, False)
    plain = parse("say <think>abc</think>")
    assert (plain.thinking, plain.content, plain.thinking_tokens) == ("", "say <think>abc</think>", 0)


@settings(max_examples=50)
@given(text=st.text(), limit=st.integers(1, 60))
def test_observations_are_capped_to_a_number_of_tokens(text: str, limit: int) -> None:
    shown, cut = cap_tokens(text, limit, TOKENIZER)
    length = len(TOKENIZER.encode(text))
    if length <= limit:
        assert (shown, cut) == (text, 0)
        return
    head, note, tail = shown.partition(f"\n[{length - limit} tokens left out]\n")
    assert note
    assert cut == max(len(text) - len(head) - len(tail), 1)
    assert len(TOKENIZER.encode(head)) + len(TOKENIZER.encode(tail)) <= limit
