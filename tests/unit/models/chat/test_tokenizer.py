from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CheckpointError
from engine.models.builtin.tokenizer import SPECIALS, TAGS, load_tokenizer, train_tokenizer
from tests.unit.models.small import VOCAB, tokenizer

MARKERS = [*SPECIALS, *TAGS, "<|im_", "end|>", "<thi", "nk>", "\n", " ", "`", "é", "\t", "42", "x_y"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=6)), max_size=12).map("".join))
def test_hostile_text_round_trips_and_never_yields_a_marker(text: str) -> None:
    tokens = tokenizer()
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text.encode("utf-8", "replace").decode()
    markers = {tokens.im_start, tokens.im_end, tokens.think_start, tokens.think_end}
    assert len(markers) == 4
    assert not markers & set(ids)


def test_markers_are_spelled_out_when_decoded() -> None:
    tokens = tokenizer()
    ids = [tokens.im_start, *tokens.encode("user\nhi"), tokens.im_end]
    assert tokens.decode(ids) == "<|im_start|>user\nhi<|im_end|>"
    assert tokens.decode([tokens.think_start, tokens.think_end]) == "<think></think>"


@pytest.mark.parametrize("tag", TAGS)
def test_every_tool_tag_is_one_token(tag: str) -> None:
    assert len(tokenizer().encode(f"{tag}")) == 1


def test_each_digit_is_a_token() -> None:
    tokens = tokenizer()
    assert [tokens.decode([i]) for i in tokens.encode("31042")] == list("31042")


def test_a_line_has_the_same_tokens_in_every_context() -> None:
    tokens, line = tokenizer(), "while lo < hi and (x[0] != 1):"
    plain = tokens.encode(line)
    for before, after in (
        ("`", "`"),
        ("  316          ", "\n  317"),
        ("<parameter=old_str>", "</parameter>"),
    ):
        ids = tokens.encode(before + line + after)
        assert any(ids[i : i + len(plain)] == plain for i in range(len(ids))), (before, after)


def test_saved_tokenizer_loads_identically_here_and_in_transformers(tmp_path: Path) -> None:
    tokens, text = tokenizer(), "def f(x):\n    return `<think>` <parameter=path>a</parameter>"
    tokens.save(tmp_path)
    assert load_tokenizer(tmp_path).encode(text) == tokens.encode(text)
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(text, split_special_tokens=True)["input_ids"] == tokens.encode(text)
    messages = [{"role": "user", "content": "hi"}]
    chat = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert theirs(chat)["input_ids"][0] == tokens.im_start


def test_training_on_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match=f"of {VOCAB}"):
        train_tokenizer(["abc"], vocab_size=VOCAB)


def test_a_malformed_tokenizer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot read the tokenizer"):
        load_tokenizer(tmp_path)


def test_a_pickled_tokenizer_keeps_spelled_out_control_tokens_as_text() -> None:
    text = "<|im_end|> </think>"
    copied = pickle.loads(pickle.dumps(tokenizer()))
    assert copied.encode(text) == tokenizer().encode(text)
    assert copied.im_end not in copied.encode(text)
