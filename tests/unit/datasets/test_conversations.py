"""Conversations of other trainers: lossless reading, conversion and writing; bad lines are left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import reading
from engine.datasets.conversations.__main__ import main
from engine.datasets.conversations.base import REPLACED, Conversation, ConversationError, checked
from engine.datasets.conversations.outcomes import resolved_of
from engine.datasets.conversations.reading import Rejected, read_conversations
from engine.datasets.conversations.text_calls import to_native, to_text
from engine.datasets.conversations.writing import DATASET_INFO, write_conversations
from engine.datasets.imported_trajectories import events_of
from engine.datasets.trajectories_conversations import read_trajectories
from engine.errors import DatasetError
from engine.types import TerminationReason, ToolCall, Verdict

TYPES = {"text": "string", "count": "integer", "lines": "array", "on": "boolean"}
TOOL = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Edit.",
        "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}},
    },
}


def call(identifier: str, name: str = "edit", **arguments: Any) -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def native(*steps: tuple[str, dict[str, Any], str], last: str = "done") -> Conversation:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You mend code."},
        {"role": "user", "content": "Mend it."},
    ]
    for index, (content, arguments, answer) in enumerate(steps):
        messages.append(
            {"role": "assistant", "content": content, "tool_calls": [call(f"c{index}", **arguments)]}
        )
        messages.append({"role": "tool", "content": answer, "tool_call_id": f"c{index}"})
    messages.append({"role": "assistant", "content": last})
    return checked(messages, [TOOL], name="task-1", resolved=True)


def plain(conversation: Conversation) -> list[tuple[Any, ...]]:
    """Return roles, contents and calls, without the calls' identifiers."""
    return [
        (
            message["role"],
            message["content"],
            message.get("reasoning_content"),
            [tool_call["function"] for tool_call in message.get("tool_calls", ())],
        )
        for message in conversation.messages
    ]


def thinking(conversation: Conversation, thought: str) -> Conversation:
    """Return the conversation with a thought in every message of the assistant."""
    messages = [
        message | ({"reasoning_content": thought} if thought and message["role"] == "assistant" else {})
        for message in conversation.messages
    ]
    return checked(messages, list(conversation.tools), name=conversation.name)


TEXT = st.text(st.characters(codec="utf-8"), max_size=30).filter(lambda text: "<function" not in text)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT.filter(lambda text: "</parameter>" not in text),
        "count": st.integers(),
        "lines": st.lists(st.integers(), max_size=3),
        "on": st.booleans(),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TEXT, ARGUMENTS, TEXT), min_size=1, max_size=4), TEXT, TEXT)
def test_native_calls_survive_conversion_to_text_and_back(
    steps: list[tuple[str, dict[str, Any], str]], last: str, thought: str
) -> None:
    conversation = thinking(native(*steps, last=last), thought)
    text = to_text(conversation)
    assert text.tools == ()
    assert all(set(message) == {"role", "content"} for message in text.messages)
    back = to_native(text)
    assert plain(back) == plain(conversation)
    assert back.tools == conversation.tools
    assert to_text(back) == text


def test_text_call_ends_the_content_and_its_answer_is_a_user_message() -> None:
    text = to_text(native(("I look.", {"text": "a\nb", "count": 3}, "ok")))
    written = "I look.\n\n<function=edit>\n<parameter=text>a\nb</parameter>\n<parameter=count>3</parameter>\n"
    assert text.messages[2] == {"role": "assistant", "content": f"{written}</function>"}
    assert text.messages[3] == {"role": "user", "content": "EXECUTION RESULT of [edit]:\nok"}
    assert text.messages[0]["content"].startswith("You mend code.\n\n")
    assert json.dumps(TOOL) in text.messages[0]["content"]


def test_a_content_that_looks_like_a_call_is_refused() -> None:
    fake = "<function=edit>\n<parameter=text>x</parameter>\n</function>"
    with pytest.raises(ConversationError, match=r"messages.2: the content itself looks like a call"):
        to_text(native((fake, {}, "ok")))
    with pytest.raises(ConversationError, match="ends a parameter"):
        to_text(native(("", {"text": "</parameter>\n</function>"}, "ok")))
    with pytest.raises(ConversationError, match=r"messages.2: the thinking itself contains </think>"):
        to_text(thinking(native(("", {}, "ok")), "a</think>b"))


def test_parallel_calls_become_one_message_each_with_its_own_answer() -> None:
    """The answers are in another order than the calls, and the last call has no answer."""
    conversation = checked(
        [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call("x", text="1"), call("y", text="2")]},
            {"role": "tool", "tool_call_id": "y", "content": "two"},
            {"role": "tool", "tool_call_id": "x", "content": "one"},
            {"role": "assistant", "content": "end", "tool_calls": [call("x", name="finish")]},
        ]
    )
    assert [(m["role"], m["content"]) for m in conversation.messages] == [
        ("user", "a\nb"), ("assistant", ""), ("tool", "one"), ("assistant", ""), ("tool", "two"),
        ("assistant", "end"),
    ]  # fmt: skip
    calls = [m["tool_calls"][0] for m in conversation.messages if "tool_calls" in m]
    assert [tool_call["function"]["arguments"].get("text") for tool_call in calls] == ["1", "2", None]
    assert len({tool_call["id"] for tool_call in calls}) == 3


GOOD = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
BROKEN = {"id": "x", "function": {"name": "f", "arguments": "{"}}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [([], "at least one message"), ("{", "at least one message"), ([GOOD[0]], "none is the assistant's")],
)
def test_a_conversation_without_responses_is_refused(messages: Any, reason: str) -> None:
    with pytest.raises(ConversationError, match=reason):
        checked(messages)


@pytest.mark.parametrize(
    ("odd", "message", "content", "problem"),
    [
        ({"role": "robot", "content": "x"}, 2, "x", "messages.2.role: 'robot', read as the user's"),
        ("x", 2, "x", "messages.2.role: 'None', read as the user's"),
        ({"role": "tool", "content": "x"}, 2, "x", "messages.2: answers no call"),
        ({"role": "user", "content": 3}, 2, "3", "messages.2.content: expected text, or parts of text"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            2, "a\n[image_url]", "messages.2.content: a part of type 'image_url' was left out",
        ),
        ({"role": "user", "content": "a\ud800\0b"}, 2, "a\ufffd\ufffdb", f"messages.2: {REPLACED}"),
        (
            {"role": "assistant", "content": "c", "tool_calls": [BROKEN]},
            2, 'c\n<tool_call>\n{"name": "f", "arguments": {}\n</tool_call>',
            "messages.2.tool_calls.0: the arguments of 'f' are not JSON",
        ),
        (
            {"role": "assistant", "content": "c", "tool_calls": "later"},
            2, "c\nlater", "messages.2.tool_calls.0: expected an object with a function's name",
        ),
        (
            {"role": "user", "content": "x", "tool_calls": [BROKEN]},
            2, "x", "messages.2.tool_calls: left out, only the assistant calls",
        ),
    ],
)  # fmt: skip
def test_odd_message_is_replaced_and_named(odd: Any, message: int, content: str, problem: str) -> None:
    conversation = checked([*GOOD, odd, GOOD[1]])
    assert [m["content"] for m in conversation.messages] == ["u", "a", content, "a"]
    assert list(conversation.problems) == [message]
    assert conversation.problems[message].startswith(problem)
    assert all("tool_calls" not in m for m in conversation.messages)


def test_missing_and_surplus_answers_are_named() -> None:
    """One call has no answer and one answer no call; the others are matched by their identifiers."""
    answers = [{"role": "tool", "tool_call_id": name, "content": f"to {name}"} for name in ("old", "b")]
    calling = {"role": "assistant", "tool_calls": [call("a"), call("b")]}
    conversation = checked([GOOD[0], calling, *answers, GOOD[1]])
    assert [(m["role"], m["content"]) for m in conversation.messages[1:]] == [
        ("assistant", ""), ("assistant", ""), ("tool", "to b"), ("user", "to old"), ("assistant", "a"),
    ]  # fmt: skip
    assert conversation.problems == {1: "messages.1: call 0 has no answer", 4: "messages.2: answers no call"}


def test_tools_that_are_no_objects_are_left_out_and_named() -> None:
    conversation = checked(GOOD, [json.dumps(TOOL), 3])
    assert (conversation.tools, conversation.problems) == ((TOOL,), {0: "tools: 1 left out, not objects"})
    assert checked(GOOD, "[").problems == {0: "tools: left out, expected a list of objects"}


CASES = Path(__file__).parent / "cases"
LOOKING: tuple[tuple[Any, ...], ...] = (("bash", {"command": "ls"}, "", "a.py"), ("submit", {}, "", ""))
"""Tool, arguments, error and observation of the two steps that most conversations have."""
OUTCOMES: dict[str, tuple[tuple[bool | None, ...], tuple[tuple[Any, ...], ...]]] = {
    "condensed_orphan_answer": (
        (None,),
        (("bash", {"command": "ls"}, "messages.2: answers no call", "a.py"), LOOKING[1]),
    ),
    "developer_role": ((None,), LOOKING),
    "messages_as_json_text": ((True,), LOOKING),
    "nebius_openhands": ((True,), LOOKING),
    "nul_in_observation": (
        (True,),
        (("bash", {"command": "ls"}, f"messages.3: {REPLACED}", "bin\ufffdary"), LOOKING[1]),
    ),
    "one_call_with_broken_json": (
        (None,),
        (
            (
                None, None, "messages.2.tool_calls.0: the arguments of 'bash' are not JSON: Unterminated",
                "ERROR: arguments are not valid JSON",
            ),
            LOOKING[1],
        ),
    ),
    "prompt_completion": ((True,), LOOKING),
    "resolved_text": ((True, None, True, True, True), LOOKING),
    "sharegpt_function_call": (
        (None,),
        (LOOKING[0], (None, None, "no tool call in the action", "")),
    ),
    "tools_as_json_texts": ((True,), LOOKING),
}  # fmt: skip
"""File → outcome of each line, and the steps of the first one."""


def test_every_case_file_has_an_expected_outcome() -> None:
    assert {path.stem for path in (CASES / "conversations").iterdir()} == set(OUTCOMES)


@pytest.mark.parametrize("name", OUTCOMES)
def test_published_forms_are_read_and_odd_parts_are_marked_on_their_steps(name: str) -> None:
    outcomes, steps = OUTCOMES[name]
    trajectories = list(read_trajectories(CASES / "conversations" / f"{name}.jsonl"))
    verdicts = {True: Verdict.PASSED, False: Verdict.FAILED, None: None}
    assert [t.verdict for t in trajectories] == [verdicts[outcome] for outcome in outcomes]
    assert [t.reward for t in trajectories] == [None if o is None else float(o) for o in outcomes]
    assert len(trajectories[0].steps) == len(steps)
    for step, (tool, arguments, error, observation) in zip(trajectories[0].steps, steps, strict=True):
        assert (step.call and step.call.name, step.call and step.call.arguments) == (tool, arguments)
        assert step.error.startswith(error)
        assert bool(step.error) == bool(error)
        assert step.observation == observation
    events = [event.model_dump_json() for event in events_of(trajectories[0], first_seq=1, time=0.0)]
    assert not any("\\u0000" in event for event in events)


def test_fields_besides_the_messages_are_kept() -> None:
    (submitted,) = read_trajectories(CASES / "conversations" / "nebius_openhands.jsonl")
    assert (submitted.patch, submitted.termination) == ("diff --git a/a b/a\n", TerminationReason.SUBMITTED)
    assert submitted.metadata["exit_status"] == "submit"
    first, second = read_trajectories(
        CASES / "trajectories" / "output.with_completions.jsonl.gz", lambda *_: None
    )
    for t in (first, second):
        assert t.patch is not None
        assert t.patch.startswith("diff --git a/a.py")
        assert (t.cost, t.error) == (0.42, "RuntimeError: Agent reached maximum iteration")
        assert (t.termination, t.verdict) == (TerminationReason.MAX_STEPS, Verdict.PASSED)
        assert t.metadata["metadata"]["llm_config"] == {"model": "claude-x"}
        assert [step.call and step.call.name for step in t.steps] == ["execute_bash", "str_replace_editor"]
    assert (first.line, second.line) == (1, 3), "the second line has no messages"


@pytest.mark.parametrize(
    ("row", "resolved"),
    [
        ({"resolved": value}, outcome)
        for value, outcome in (
            (True, True), (1, True), (1.0, True), ("true", True), (" True", True), ("1", True),
            (False, False), (0, False), (0.0, False), ("False", False),
            (-1, None), (2, None), (0.5, None), (float("nan"), None), ("yes", None), ("", None), (None, None),
            ([], None), ({}, None),
        )
    ]
    + [
        ({}, None), ({"reward": 1.0}, True), ({"reward": float("nan")}, None), ({"target": False}, False),
        ({"report": {"resolved": True}}, True), ({"report": None, "resolved": -1}, None),
        ({"test_result": {"report": {"resolved": True}}}, True), ({"resolved": True, "reward": 0}, None),
    ],
)  # fmt: skip
def test_resolved_of_accepts_only_known_values(row: dict[str, Any], resolved: bool | None) -> None:
    assert resolved_of(row) is resolved


def test_only_text_under_the_known_key_is_a_patch(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    rows = [{"messages": GOOD, **more} for more in ({"diff": "x"}, {"model_patch": 3}, {"model_patch": ""})]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [trajectory.patch for trajectory in read_trajectories(path)] == [None, None, ""]


@pytest.mark.parametrize("format_name", ["openai", "trl"])
@pytest.mark.parametrize("as_text", [True, False])
def test_written_conversations_are_read_back(tmp_path: Path, format_name: str, as_text: bool) -> None:
    written = [native(("a", {"text": "ü\n", "count": 1}, "b")), native(last="only")]
    written = [to_text(c) for c in written] if as_text else written
    assert write_conversations(written, tmp_path / "out.jsonl", format_name) == 2
    again = [c for _, c in read_conversations(tmp_path / "out.jsonl")]
    assert [c.messages for c in again if isinstance(c, Conversation)] == [c.messages for c in written]
    assert [c.tools for c in again if isinstance(c, Conversation)] == [c.tools for c in written]
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    if not as_text:
        arguments = row["messages"][2]["tool_calls"][0]["function"]["arguments"]
        assert isinstance(arguments, str if format_name == "openai" else dict)


def test_sharegpt_alternates_roles_and_is_added_to_dataset_info(tmp_path: Path) -> None:
    conversations = [to_text(native(("a", {"text": "x"}, "b")))]
    (tmp_path / DATASET_INFO).write_text(json.dumps({"other": {"file_name": "o.json"}}))
    write_conversations(conversations, tmp_path / "mine.jsonl", "sharegpt")
    row = json.loads((tmp_path / "mine.jsonl").read_text())
    assert [turn["from"] for turn in row["conversations"]] == ["human", "gpt", "human", "gpt"]
    info = json.loads((tmp_path / DATASET_INFO).read_text())
    assert set(info) == {"other", "mine"}
    entry = info["mine"]
    assert (entry["file_name"], entry["formatting"]) == ("mine.jsonl", "sharegpt")
    assert entry["columns"] == {"messages": "conversations", "system": "system"}
    ((_, again),) = read_conversations(tmp_path / "mine.jsonl")
    assert isinstance(again, Conversation)
    assert again.messages == conversations[0].messages
    with pytest.raises(ConversationError, match="as text"):
        write_conversations([native(("a", {}, "b"))], tmp_path / "no.jsonl", "sharegpt")
    assert not (tmp_path / "no.jsonl").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [DATASET_INFO, "mine.jsonl"]


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_a_damaged_dataset_info_is_refused_before_anything_is_written(tmp_path: Path, content: str) -> None:
    (tmp_path / DATASET_INFO).write_bytes(content.encode("latin-1"))
    with pytest.raises(ConversationError, match="repair or remove it"):
        write_conversations([to_text(native(("a", {}, "b")))], tmp_path / "mine.jsonl", "sharegpt")
    assert [path.name for path in tmp_path.iterdir()] == [DATASET_INFO]


def test_preference_pairs_share_task_and_prompt(tmp_path: Path) -> None:
    def case(name: str, resolved: bool | None, last: str) -> Conversation:
        return checked([*GOOD[:1], {"role": "assistant", "content": last}], name=name, resolved=resolved)

    cases = [case("a", True, "1"), case("a", False, "2"), case("a", True, "3"), case("b", True, "4")]
    cases += [case("c", False, "5"), case("a", None, "6")]
    assert write_conversations(cases, tmp_path / "p.jsonl", "preference") == 1
    assert json.loads((tmp_path / "p.jsonl").read_text()) == {
        "prompt": [{"role": "user", "content": "u"}],
        "chosen": [{"role": "assistant", "content": "1"}],
        "rejected": [{"role": "assistant", "content": "2"}],
    }


def swe_gym_row(name: str, resolved: bool) -> dict[str, Any]:
    conversation = native(("a", {"text": "x"}, "b"))
    messages = [dict(message) for message in conversation.messages]
    for message in messages:
        message["content"] = [{"type": "text", "text": message["content"]}]
    return {
        "instance_id": name,
        "report": {"resolved": resolved},
        "raw_completions": {"messages": messages, "tools": [TOOL]},
    }


def test_compressed_swe_gym_file_is_read_without_its_bad_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "output.with_completions.jsonl.gz"
    rows = [swe_gym_row("a", True), swe_gym_row("b", False), {"instance_id": "c", "raw_completions": None}]
    lines = [json.dumps(row) for row in rows]
    path.write_bytes(gzip.compress("\n".join([lines[0], "{", "", lines[2], lines[1], "[1]"]).encode()))
    entries = dict(read_conversations(path))
    assert {number: type(entry) for number, entry in entries.items()} == {
        1: Conversation, 2: Rejected, 4: Rejected, 5: Conversation, 6: Rejected,
    }  # fmt: skip
    first = entries[1]
    assert isinstance(first, Conversation)
    assert (first.name, first.resolved) == ("a", True)
    assert plain(first) == plain(native(("a", {"text": "x"}, "b")))
    assert main([str(path), str(tmp_path / "out.jsonl"), "--format", "sharegpt", "--resolved"]) == 0
    output = capsys.readouterr()
    assert "wrote 1 rows" in output.out
    assert [line.partition(": ")[2] for line in output.err.splitlines()] == [
        f"1 line was left out; {reason}"
        for reason in (
            "line 2: not JSON: Expecting property name enclosed in double quotes: line 2 column 1 (char 2)",
            "line 4: raw_completions: there is none",
            "line 6: expected an object",
        )
    ]
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DatasetError, match="cannot read"):
        list(read_conversations(path))
    assert main([str(path), str(tmp_path / "out.jsonl")]) == 2


def test_command_reports_replaced_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = CASES / "conversations" / "condensed_orphan_answer.jsonl"
    assert main([str(path), str(tmp_path / "out.jsonl")]) == 0
    reported = "1 line was written with parts that were replaced; line 1: messages.2: answers no call"
    assert capsys.readouterr().err == f"{path}: {reported}\n"


def nested(depth: int, as_text: bool) -> dict[str, Any]:
    arguments: Any = "x"
    for _ in range(depth):
        arguments = {"a": arguments}
    function = {"name": "edit", "arguments": json.dumps(arguments) if as_text else arguments}
    response = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
    return {"messages": [{"role": "user", "content": "Mend it."}, response]}


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("depth", [120, 600])
def test_line_with_deeply_nested_arguments_is_left_out(tmp_path: Path, depth: int, as_text: bool) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(json.dumps(nested(levels, as_text)) for levels in (20, depth, 20)))
    left_out: list[int] = []
    kept = [trajectory.line for trajectory in read_trajectories(path, lambda line, _: left_out.append(line))]
    assert (kept, left_out) == ([1, 3], [2])
    with pytest.raises(DatasetError, match=r"row 1"):
        list(read_trajectories(path))


@pytest.mark.parametrize("part", ["arguments", "tools"])
def test_json_text_within_a_line_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(reading, "MAX_VALUES", 50)
    row, many = nested(1, as_text=True), json.dumps([{"name": "x"}] * 60)
    if part == "tools":
        row["tools"] = many
    else:
        row["messages"][1]["tool_calls"][0]["function"]["arguments"] = many
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(row))
    ((_, entry),) = read_conversations(path)
    if part == "tools":
        assert isinstance(entry, Conversation)
        assert entry.tools == ()
    else:
        assert entry == Rejected("more than 50 values")


@pytest.mark.parametrize("place", ["content", "arguments", "text"])
def test_lone_surrogate_affects_only_its_step(tmp_path: Path, place: str) -> None:
    row = nested(1, as_text=place == "text")
    bad = json.dumps(row).replace(
        "Mend it." if place == "content" else "x", "\\\\ud800" if place == "text" else "\\ud800"
    )
    path = tmp_path / "set.jsonl"
    path.write_text(f"{bad}\n{json.dumps(row)}\n")
    first, second = read_trajectories(path)
    assert first.steps[0].error.endswith(REPLACED)
    assert first.steps[0].call == ToolCall(
        name="edit", arguments={"a": "x" if place == "content" else "\ufffd"}
    )
    assert second.steps[0].error == ""


def test_issue_is_extracted_from_between_its_tags(tmp_path: Path) -> None:
    prompts = ["<github_issue>\n One. </github_issue> Mend it.", "<pr_description>Two.", "Three."]
    path = tmp_path / "set.jsonl"
    answer = {"role": "assistant", "content": "done"}
    path.write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": p}, answer]}) + "\n" for p in prompts)
    )
    statements = [trajectory.row.task.problem_statement for trajectory in read_trajectories(path)]
    assert statements == ["One.", "<pr_description>Two.", "Three."]
