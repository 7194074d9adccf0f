"""Stored trajectories as token records: recorded ids that match, else rendered conversations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.config.learning.fine_tuning import ConversationConfig, FineTuningConfig
from engine.datasets.conversations.base import Conversation, checked
from engine.datasets.conversations.reading import read_conversations
from engine.errors import DatasetError
from engine.events.stored_trajectories import (
    StoredStep,
    StoredTrajectory,
    read_trajectories,
    write_trajectories,
)
from engine.events.token_block import TokenBlock, decode
from engine.models.chat.base import Chat
from engine.models.loader import open_model
from engine.tokens import TOKEN_COLUMNS, TokenRecord
from engine.tools.parser import parse, read_native
from engine.tools.rendering import render_native
from engine.tools.tool_sets import OPENHANDS, R2E_GYM, TOOL_SETS
from engine.trainer.__main__ import main
from engine.trainer.sft.examples import Examples, epoch_ends, heldout_instances, make_examples, plan_steps
from engine.trainer.sft.recorded import ConversationRenderer, ConversationWriter, cut, fits, translated
from engine.types import ToolCall
from tests.unit.trainer.builders.sft_builders import COMPACT, step, trajectory, with_ids


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return open_model("builtin:quickstart", home=tmp_path_factory.mktemp("home")).chat()


def sampled(chat: Chat, record: TokenRecord) -> list[str]:
    """Return the text of each turn that a policy sampled."""
    turns = chat.tokenizer.decode(record.ids[record.mask].tolist()).split("<|im_end|>")
    assert turns.pop() == ""
    return turns


def render(chat: Chat, stored: StoredTrajectory, config: ConversationConfig = COMPACT) -> TokenRecord:
    return ConversationRenderer(chat, config).render(stored)


def test_recorded_ids_fit_only_if_they_decode_to_the_recorded_responses(chat: Chat) -> None:
    known = with_ids(chat, trajectory(1))
    assert known.tokens is not None
    assert fits(known, chat.tokenizer)
    assert not fits(trajectory(1), chat.tokenizer)
    other = trajectory(2)
    assert not fits(known.model_copy(update={"steps": other.steps}), chat.tokenizer)
    assert not fits(known.model_copy(update={"steps": [*known.steps, other.steps[0]]}), chat.tokenizer)
    record = decode(known.tokens.data)
    foreign = TokenRecord(record.ids + chat.tokenizer.vocab_size, record.mask)
    assert not fits(known.model_copy(update={"tokens": TokenBlock.of(foreign)}), chat.tokenizer)
    negative = TokenRecord(np.where(record.mask, record.ids, -7), record.mask)
    assert not fits(known.model_copy(update={"tokens": TokenBlock.of(negative)}), chat.tokenizer)
    assert not fits(known.model_copy(update={"steps": []}), chat.tokenizer)
    unprompted = TokenRecord(record.ids, np.ones(len(record), bool))
    assert not fits(known.model_copy(update={"tokens": TokenBlock.of(unprompted)}), chat.tokenizer)


def test_rendered_trajectories_mark_exactly_the_responses_as_sampled(chat: Chat) -> None:
    stored = trajectory(3)
    record = render(chat, stored)
    assert sampled(chat, record) == [step.response for step in stored.steps]
    text = chat.tokenizer.decode(record.ids.tolist())
    assert "a3.py: the number is wrong" in text
    for turn in stored.steps[:-1]:
        assert f"<|im_start|>user\n{turn.observation}<|im_end|>" in text
    assert sorted(set(record.steps.tolist())) == [-1, 0, 1, 2]


def test_calls_are_written_in_the_configured_format(chat: Chat) -> None:
    native = ConversationConfig(prompt="compact_v1", tool_format="native")
    source = trajectory(3)
    turns = sampled(chat, render(chat, source, native))
    for turn, stored in zip(turns, source.steps, strict=True):
        prose, (call,) = read_native(turn)
        assert (call.name, call.arguments) == (stored.tool, stored.arguments)
        assert stored.thought in prose
        assert "<function=" not in turn
    native_steps = [
        stored.model_copy(update={"response": turn}) for turn, stored in zip(turns, source.steps, strict=True)
    ]
    rendered = sampled(chat, render(chat, source.model_copy(update={"steps": native_steps})))
    assert [parse(turn, "xml").call for turn in rendered] == [
        ToolCall(name=stored.tool, arguments=stored.arguments) for stored in source.steps
    ]
    assert [parse(turn, "xml").thought for turn in rendered] == [stored.thought for stored in source.steps]


@pytest.mark.parametrize("tool_format", ["xml", "native"])
def test_exported_messages_match_the_rendered_conversation(chat: Chat, tool_format: str) -> None:
    config = ConversationConfig.model_validate({"prompt": "compact_v1", "tool_format": tool_format})
    source = trajectory(3)
    written = ConversationWriter(config).conversation(source)
    assert (written.name, written.resolved) == ("task-3", True)
    assert [message["role"] for message in written.messages][-5:] == (
        ["assistant", "user", "assistant", "user", "assistant"]
        if tool_format == "xml"
        else ["assistant", "tool", "assistant", "tool", "assistant"]
    )
    rendered = chat.tokenizer.decode(render(chat, source, config).ids.tolist())
    position = 0
    for message in written.messages:
        if message["role"] != "system":  # for native calls it also declares the tools
            position = rendered.index(message["content"], position) + len(message["content"])
    calls = [message["tool_calls"][0]["function"] for message in written.messages if "tool_calls" in message]
    if tool_format == "native":
        assert calls == [{"name": step.tool, "arguments": step.arguments} for step in source.steps]
        assert checked(list(written.messages), list(written.tools)).messages[-1]["tool_calls"]
    else:
        assert calls == []
        assert written.messages[-1]["content"] == source.steps[-1].response


def test_conversations_command_exports_trajectories_in_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trajectories(tmp_path / "t.jsonl", [trajectory(1), trajectory(2)])
    out = tmp_path / "out.jsonl"
    for format_name in ("openai", "trl", "sharegpt"):
        command = ["conversations", str(tmp_path / "t.jsonl"), str(out), "--format", format_name]
        assert main([*command, "--prompt", "compact_v1"]) == 0
        rows = [row for _, row in read_conversations(out)]
        assert all(isinstance(row, Conversation) and len(row.messages) >= 6 for row in rows)
    assert main([*command, "--prompt", "none_v1"]) == 2
    assert main(["conversations", str(tmp_path / "no.jsonl"), str(out)]) == 2
    printed = capsys.readouterr()
    assert "wrote 2 rows" in printed.out
    assert "unknown prompt 'none_v1'" in printed.err
    assert "cannot read the trajectories" in printed.err


def test_argument_values_survive_a_change_of_call_format(chat: Chat) -> None:
    hostile = "\n  a\t'\"<b>&\n</parameter>\n\n"
    arguments = {"command": "create", "path": "/testbed/ü.py", "file_text": hostile}
    response = f"I write it.\n{render_native('file_editor', arguments)}"
    turn = StoredStep(response=response, tool="file_editor", arguments=arguments)
    (written,) = sampled(chat, render(chat, trajectory(1, steps=[turn])))
    assert parse(written, "xml").call == ToolCall(name="file_editor", arguments=arguments)
    assert written.startswith("I write it.\n\n<function=file_editor>")


def test_a_call_that_xml_cannot_express_keeps_its_recorded_text(chat: Chat) -> None:
    arguments = {"cmd": "echo '</parameter>\n</function>'"}
    response = render_native("execute_bash", arguments)
    turn = StoredStep(response=response, tool="execute_bash", arguments=arguments)
    assert sampled(chat, render(chat, trajectory(1, steps=[turn]))) == [response]


def test_calls_are_translated_to_the_configured_tool_set() -> None:
    bash = ToolCall(name="execute_bash", arguments={"cmd": "ls"})
    other = ToolCall(name="execute_bash", arguments={"command": "ls"})
    assert translated(bash, OPENHANDS) == other
    assert translated(other, R2E_GYM) == bash
    assert translated(bash, R2E_GYM) == bash
    submit = ToolCall(name="submit", arguments={})
    assert translated(submit, R2E_GYM) == ToolCall(name="finish", arguments={"command": "submit"})
    assert translated(ToolCall(name="search", arguments={"search_term": "x"}), OPENHANDS) is None
    assert translated(ToolCall(name="browse", arguments={}), R2E_GYM) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("submit", {}),
        ("finish", {"message": "All tests pass.", "task_completed": "true"}),
        ("finish", {"command": "submit", "result": "All tests pass."}),
    ],
)
def test_submit_calls_of_other_agents_are_rewritten_to_accepted_ones(
    chat: Chat, name: str, arguments: dict[str, str]
) -> None:
    response = f"Done.\n{render_native(name, arguments)}"
    turn = StoredStep(thought="Done.", response=response, tool=name, arguments=arguments)
    for tools, tool_set in TOOL_SETS.items():
        config = ConversationConfig.model_validate({"prompt": "compact_v1", "tools": tools})
        (written,) = sampled(chat, render(chat, trajectory(1, steps=[turn]), config))
        call = parse(written, "xml", tool_set.tools).call
        assert call is not None
        assert tool_set.implementation_call(call).arguments["command"] == "submit"
        assert written.startswith("Done.")
        if tools == "r2e_gym" and len(arguments) == 2 and name == "finish":
            assert call.arguments["result"] == "All tests pass."


def test_a_thinking_block_opened_by_the_prompt_is_recognised(chat: Chat) -> None:
    """Responses after such a prompt begin inside the thinking block."""
    usual = step("look at lines 1-3", "file_editor", command="view", path="/testbed/a.py")
    assert usual.response.startswith("<think>")
    opened = usual.model_copy(update={"response": usual.response.removeprefix("<think>")})
    for config in (COMPACT, ConversationConfig(prompt="compact_v1", tool_format="native")):
        expected = render(chat, trajectory(1, steps=[usual]), config)
        assert render(chat, trajectory(1, steps=[opened]), config) == expected
    value = "about </think> tags"
    turn = step("", "execute_bash", cmd=f"echo '{value}'")
    plain = turn.model_copy(update={"response": turn.response.partition("</think>")[2].lstrip()})
    assert "<think>" not in plain.response
    (written,) = sampled(chat, render(chat, trajectory(1, steps=[plain])))
    assert written == plain.response


@pytest.mark.parametrize("termination", ["max_response", "max_context"])
def test_a_truncated_response_is_rendered_without_an_end_token(chat: Chat, termination: str) -> None:
    cut_off = StoredStep(thought="I", response="<think>I wonder", observation="ERROR: cut", error="cut")
    steps = [*trajectory(1).steps[:2], cut_off]
    truncated = trajectory(1, steps=steps, termination=termination)
    record = render(chat, truncated)
    assert int(record.ids[-1]) not in chat.stop_ids
    assert record.mask[-1]
    assert chat.tokenizer.decode(record.ids.tolist()).endswith("I wonder")
    whole = render(chat, trajectory(1, steps=steps, termination="max_steps"))
    assert record == TokenRecord(*(getattr(whole, name)[:-1] for name in TOKEN_COLUMNS))
    messages = ConversationWriter(COMPACT).conversation(truncated).messages
    assert messages[-1]["content"] == steps[1].response
    finished = trajectory(1, termination=termination)
    assert int(render(chat, finished).ids[-1]) in chat.stop_ids


def test_a_cut_sequence_shares_no_memory_with_the_original(chat: Chat) -> None:
    record = render(chat, trajectory(1))
    (short,) = cut(record, len(record) - 1)
    for name in TOKEN_COLUMNS:
        assert not np.shares_memory(getattr(short, name), getattr(record, name))
        assert getattr(short, name).base is None


def test_long_sequences_are_cut_or_dropped(chat: Chat) -> None:
    record = render(chat, trajectory(1))
    first_end = int(np.flatnonzero(record.steps == 0)[-1]) + 1
    (short,) = cut(record, first_end)
    assert len(short) == first_end
    assert short.num_sampled == int(record.mask[:first_end].sum())
    assert list(cut(record, int(np.flatnonzero(record.mask)[0]))) == []
    forked = TokenRecord([1, 2, 3, 1, 4, 5], [0, 1, 1, 0, 0, 1], steps=[-1, 0, 0, -1, -1, 1])
    assert [len(part) for part in cut(forked, 2)] == [2]


def build_examples(chat: Chat, stored: list[StoredTrajectory], **settings: object) -> Examples:
    config = FineTuningConfig.model_validate(settings)
    examples = make_examples(
        stored,
        chat,
        ConversationRenderer(chat, COMPACT),
        config,
        heldout=heldout_instances([t.instance_id for t in stored], config.heldout_share, 0),
        max_tokens=config.max_tokens,
    )
    assert not {e.task_id for e in examples.train} & {e.task_id for e in examples.heldout}
    return examples


def count_examples(chat: Chat, stored: list[StoredTrajectory], **settings: object) -> dict[str, int]:
    return build_examples(chat, stored, **settings).counts


def test_counts_cover_used_cut_and_dropped_trajectories(chat: Chat) -> None:
    trajectories = [trajectory(n) for n in range(4)] + [with_ids(chat, trajectory(n)) for n in range(4, 10)]
    counts = count_examples(chat, [*trajectories, trajectory(10, problem_statement="")], heldout_share=0.2)
    assert counts.pop("sampled_tokens") > 500
    assert counts["train_trajectories"] + counts["heldout_trajectories"] == 10
    assert (counts["recorded_ids"], counts["rendered"], counts["dropped_without_task"]) == (6, 4, 1)
    assert count_examples(chat, trajectories, max_tokens=100)["cut_sequences"] == 10
    assert counts["train_samples"] == counts["train_trajectories"]
    forked = TokenRecord([1, 2, 3, 1, 4, 5], [0, 1, 1, 0, 0, 1], steps=[-1, 0, 0, -1, -1, 1])
    two = StoredStep(response=chat.tokenizer.decode([2, 3])), StoredStep(response=chat.tokenizer.decode([5]))
    forked_trajectory = trajectory(1, steps=list(two), tokens=TokenBlock.of(forked))
    assert count_examples(chat, [forked_trajectory])["train_samples"] == 2
    with pytest.raises(DatasetError, match=r"10 overlong.*raise max_tokens"):
        count_examples(chat, trajectories, max_tokens=100, overlong="drop")


@pytest.mark.parametrize(("count", "why"), [(0, "the file is empty"), (3, "3 without steps")])
def test_trajectories_without_steps_are_refused_with_the_reason(chat: Chat, count: int, why: str) -> None:
    with pytest.raises(DatasetError) as refused:
        count_examples(chat, [trajectory(n, steps=[]) for n in range(count)])
    assert str(refused.value).endswith(f"no trajectory is left to train on ({why}): choose others")


def test_versions_of_an_instance_are_held_out_together(chat: Chat) -> None:
    versions = [trajectory(n, task_id=f"{n % 5}-version-{n}", instance_id=f"task-{n % 5}") for n in range(20)]
    examples = build_examples(chat, versions, heldout_share=0.4)
    instances = [{e.task_id[0] for e in part} for part in (examples.train, examples.heldout)]
    assert not instances[0] & instances[1]
    assert (len(examples.train), len(examples.heldout)) == (12, 8)


def test_heldout_split_takes_at_least_one_and_never_all_instances() -> None:
    tasks = [f"t{n % 50}" for n in range(200)]
    assert heldout_instances(tasks, 0.0, 0) == frozenset()
    assert len(heldout_instances(tasks, 0.1, 0)) == 5
    assert heldout_instances(tasks, 0.1, 0) == heldout_instances(reversed(tasks), 0.1, 0)
    assert heldout_instances(tasks, 0.1, 0) != heldout_instances(tasks, 0.1, 1)
    assert len(heldout_instances(["a", "b"], 0.01, 0)) == 1
    assert len(heldout_instances(["a", "b"], 0.5, 0)) == 1
    assert heldout_instances(["a"], 0.5, 0) == frozenset()


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_every_epoch_uses_each_example_once_in_a_different_order(batch_size: int) -> None:
    config = FineTuningConfig(epochs=3, batch_size=batch_size)
    steps = plan_steps(10, config, seed=4)
    ends = sorted(epoch_ends(10, config))
    assert ends[-1] == len(steps)
    epochs = [steps[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    orders = [[index for chosen in epoch for index in chosen] for epoch in epochs]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert all(len(chosen) <= batch_size for chosen in steps)
    assert plan_steps(10, config, seed=4) == steps != plan_steps(10, config, seed=5)
    limited = FineTuningConfig(epochs=3, batch_size=batch_size, max_steps=2)
    assert plan_steps(10, limited, seed=4) == steps[:2]


def test_a_damaged_row_is_reported_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = trajectory(1).model_dump_json()
    path.write_text(f"{good}\n{json.dumps({'id': 1})}\n")
    rows = read_trajectories(path)
    assert next(rows) == trajectory(1)
    with pytest.raises(DatasetError, match="row 1") as refused:
        next(rows)
    assert refused.value.row == 1
    with pytest.raises(DatasetError, match="cannot read"):
        next(read_trajectories(tmp_path / "none"))
