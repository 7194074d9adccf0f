"""Scripted policies: patches applied with the real tools, stored responses replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError
from engine.events import stored_trajectories
from engine.events.stored_trajectories import StoredStep, StoredTrajectory
from engine.inference.base import (
    ChatRequest,
    ChatResponse,
    GenerationContext,
    GenerationRequest,
    Policy,
    SamplingParams,
    Usage,
)
from engine.inference.scripted.oracle import plan
from engine.inference.scripted.policies import NoopPolicy, OraclePolicy, ReplayPolicy, ScriptedPolicy
from engine.rollout import GroupRequest
from engine.rollout.serialise import write_trajectories
from engine.tools import FileEditor, MemoryFileStore, ObservationStyle, run_immediately
from engine.tools.formats import ToolFormat
from engine.tools.parser import NativeCall, parse
from engine.tools.rendering import render_turn
from engine.tools.tool_sets import OPENHANDS
from engine.types import Step, TerminationReason, ToolCall, Trajectory
from tests.builders.rollout_builders import SOURCE, in_bytes, make_key, make_row, quick_agent, swe_scheduler
from tests.fakes.memory_sandbox import MemoryBackend


def carry_out(
    patch: str, files: dict[str, str], *, style: ObservationStyle = "compact", snippet_lines: int = 0
) -> tuple[dict[str, str], list[ToolCall]]:
    """Execute the oracle's plan with a real editor; emulate its shell commands."""
    store = MemoryFileStore({f"/testbed/{name}": text.encode() for name, text in files.items()})
    editor = FileEditor(store, workdir="/testbed", style=style, snippet_lines=snippet_lines)
    steps = plan(make_row(patch=patch))
    calls = []
    _, call = next(steps)
    while call.name != "finish":
        calls.append(call)
        observation, error = "", ""
        if call.name == "execute_bash":
            _shell(store, call.arguments["cmd"])
        else:
            result = run_immediately(editor.run(call.arguments))
            observation, error = result.observation, result.error
        step = Step(
            index=len(calls), thought="", response="", call=call, observation=observation, error=error,
            exit_code=0,
        )  # fmt: skip
        _, call = steps.send(step)
    return {name.removeprefix("/testbed/"): data.decode() for name, data in store.files.items()}, calls


def _shell(store: MemoryFileStore, command: str) -> None:
    words = command.split()
    if words[0] == "rm":
        del store.files[words[-1]]
    elif "mv" in words:
        store.files[words[-1]] = store.files.pop(words[-2])


def diff(body: str, *, old: str = "a/m.py", new: str = "b/m.py") -> str:
    return f"diff --git a/m.py b/m.py\n--- {old}\n+++ {new}\n{body}"


@pytest.mark.parametrize("style", ["compact", "full", "r2e_gym"])
def test_oracle_widens_an_edit_that_is_not_unique(style: ObservationStyle) -> None:
    block = "def f():\n    x = 1\n    return x\n"
    source = f"# one\n{block}# two\n{block}# three\n"
    patch = diff("@@ -6,3 +6,3 @@\n def f():\n-    x = 1\n+    x = 2\n     return x\n")
    files, calls = carry_out(patch, {"m.py": source}, style=style)
    assert files["m.py"] == f"# one\n{block}# two\n{block.replace('1', '2')}# three\n"
    assert [call.arguments["command"] for call in calls] == ["view", "str_replace", "view", "str_replace"]


def test_oracle_widens_an_edit_in_a_file_with_crlf() -> None:
    block = "def f():\r\n    x = 1\r\n    return x\r\n"
    patch = diff("@@ -6,3 +6,3 @@\n def f():\r\n-    x = 1\r\n+    x = 2\r\n     return x\r\n")
    files, calls = carry_out(patch, {"m.py": f"# one\r\n{block}# two\r\n{block}# three\r\n"})
    assert files["m.py"] == f"# one\r\n{block}# two\r\n{block.replace('1', '2')}# three\r\n"
    assert [call.arguments["command"] for call in calls] == ["view", "str_replace", "view", "str_replace"]


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        ("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\n", "a\r\nc\n"),
        ("a\nb\n", "@@ -1,0 +2,2 @@\n+x\n+\n", "a\nx\n\nb\n"),
        ("a\nb\nc\n", "@@ -2 +1,0 @@\n-b\n", "a\nc\n"),
        ("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n", "a\nc\n"),
        ("a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n", "a\nc"),
        ("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+\tc \r\n", "a\r\n\tc \r\n"),
        ("", "@@ -0,0 +1 @@\n+x\n", "x\n"),
        ("a\n\n\nb\n", "@@ -2,1 +2,1 @@\n-\n+x\n", "a\nx\n\nb\n"),
    ],
)
def test_oracle_edits_are_exact(before: str, body: str, after: str) -> None:
    assert carry_out(diff(body), {"m.py": before})[0] == {"m.py": after}


def test_oracle_creates_removes_and_renames_files() -> None:
    created = "diff --git a/n.py b/n.py\nnew file mode 100644\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+x\n"
    removed = (
        "diff --git a/o.py b/o.py\ndeleted file mode 100644\n--- a/o.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    renamed = "diff --git a/p.py b/q.py\nsimilarity index 100%\nrename from p.py\nrename to q.py\n"
    files, calls = carry_out(created + removed + renamed, {"o.py": "x\n", "p.py": "p\n"})
    assert files == {"n.py": "x\n", "q.py": "p\n"}
    assert [call.name for call in calls] == ["file_editor", "execute_bash", "execute_bash"]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "binary"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+y\n", "link"),
        ("not a patch", "cannot be read"),
        (diff("@@ -1 +1 @@\n-absent\n+x\n"), "differs from the gold patch's base"),
    ],
)
def test_oracle_reports_unsupported_patches(patch: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        carry_out(patch, {"m.py": "a\n"})


async def respond(scripted: ScriptedPolicy, *steps: Step, max_tokens: int = 10_000) -> str:
    policy = in_bytes(scripted)
    request = GenerationRequest(
        prompt_ids=(),
        sampling=SamplingParams(max_tokens=max_tokens),
        seed=0,
        stop_ids=frozenset({257}),
        context=GenerationContext(key=make_key(), row=make_row(), steps=steps),
    )
    generation = await policy.generate(request)
    assert len(generation.ids) == len(generation.logprobs) == len(generation.versions)
    assert generation.stopped == (generation.ids[-1] == 257)
    return policy.chat.tokenizer.decode(generation.ids).removesuffix("<|im_end|>")


@pytest.mark.parametrize("tool_format", ["xml", "native"])
async def test_policies_call_the_tools_by_the_configured_names(tool_format: ToolFormat) -> None:
    noop = NoopPolicy(tool_format=tool_format, tool_set=OPENHANDS)
    parsed = parse(await respond(noop), tool_format, OPENHANDS.tools)
    assert parsed.call == ToolCall(name="finish", arguments={})
    oracle = OraclePolicy(tool_format=tool_format, tool_set=OPENHANDS)
    parsed = parse(await respond(oracle), tool_format, OPENHANDS.tools)
    assert parsed.call is not None
    assert parsed.call.name == "str_replace_editor"


async def test_replay_returns_stored_responses(tmp_path: Path) -> None:
    record = {
        "key": {"task_id": "a" * 16, "index": 0},
        "steps": [{"response": "<think>\na"}, {"response": "b"}],
    }
    path = tmp_path / "stored.jsonl"
    path.write_text(json.dumps(record) + "\n\n")
    policy = ReplayPolicy.from_file(path)
    step = Step(index=0, thought="", response="", call=None, observation="")
    assert await respond(policy) == "<think>\na"
    assert await respond(policy, step) == "b"
    with pytest.raises(ModelError, match="only 2 steps"):
        await respond(policy, step, step)
    with pytest.raises(ModelError, match="no stored trajectory"):
        await respond(ReplayPolicy({}))
    path.write_text("{}\n")
    with pytest.raises(ModelError, match="line 1"):
        ReplayPolicy.from_file(path)


async def test_replay_reads_exported_trajectories(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    first, second = (
        StoredTrajectory(
            id=number,
            task_id="a" * 16,
            instance_id="a",
            problem_statement="p",
            steps=[StoredStep(response=text, observation="x" * length)],
        )
        for number, text, length in ((7, "first", 17 << 20), (9, "second", 0))
    )
    stored_trajectories.write_trajectories(path, (first, second))
    policy = ReplayPolicy.from_file(path)
    assert await respond(policy) == "first"
    key = replace(make_key(), index=1)
    request = replace(request_of(native=False), context=GenerationContext(key=key, row=make_row(), steps=()))
    assert (await policy.respond(request)).content == "second"


def request_of(*steps: Step, native: bool = True) -> ChatRequest:
    return ChatRequest(
        messages=(),
        tools=({"type": "function"},) if native else (),
        sampling=SamplingParams(),
        seed=0,
        context=GenerationContext(key=make_key(), row=make_row(), steps=steps),
    )


async def test_scripted_policies_answer_with_messages_and_report_no_tokens() -> None:
    response = await NoopPolicy(tool_format="native", tool_set=OPENHANDS).respond(request_of())
    assert response == ChatResponse(
        content="", thinking="done", calls=(NativeCall(name="finish", arguments={}),)
    )
    assert response.usage == Usage()
    response = await NoopPolicy().respond(request_of(native=False))
    assert (response.thinking, response.calls) == ("done", ())
    assert response.content.startswith("<function=finish>")


def stored_policy(tmp_path: Path, *steps: dict[str, Any]) -> ReplayPolicy:
    path = tmp_path / "stored.jsonl"
    record = {"key": {"task_id": "a" * 16, "index": 0}, "steps": steps}
    path.write_text(json.dumps(record))
    return ReplayPolicy.from_file(path)


CALL = '<tool_call>\n{"name": "execute_bash", "arguments": {"cmd": "ls"}}\n</tool_call>'
FAMILYS_OWN = "analysis<|end|>to=functions.execute_bash<|message|>{}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"<think>\nwhy\n</think>\n\nI look.\n{CALL}", ("why", "I look.", ["execute_bash"], "")),
        (f"<think>\nwhy\n</think>\n\n{CALL}", ("why", "", ["execute_bash"], "")),
        (f"{CALL}\n{CALL}", ("", "", ["execute_bash"] * 2, "")),
        ("I use <tool_call> tags", ("", "I use <tool_call> tags", [], "")),
        (f"<think>never closed {CALL}", ("", f"<think>never closed {CALL}", [], "")),
        ("<tool_call>\n{broken\n</tool_call>", ("", "", [""], "not valid JSON")),
    ],
)
async def test_native_responses_are_replayed_as_their_original_messages(
    tmp_path: Path, text: str, wanted: tuple[str, str, list[str], str]
) -> None:
    response = await stored_policy(tmp_path, {"response": text}).respond(request_of())
    names = [call.name for call in response.calls]
    assert (response.thinking, response.content, names) == wanted[:3]
    assert all(wanted[3] in call.error for call in response.calls)
    if not wanted[3]:
        assert render_turn(response.thinking, response.content, response.calls) == text


async def test_model_specific_responses_are_replayed_from_their_stored_calls(tmp_path: Path) -> None:
    call = {"name": "execute_bash", "arguments": {"cmd": "ls"}}
    policy = stored_policy(tmp_path, {"response": FAMILYS_OWN, "call": call})
    response = await policy.respond(request_of())
    assert response.calls == (NativeCall(name="execute_bash", arguments={"cmd": "ls"}),)
    as_text = await policy.respond(request_of(native=False))
    assert as_text == ChatResponse(content=FAMILYS_OWN), "formats written as text read the text alone"


@pytest.mark.parametrize("tool_format", ["xml", "native"])
async def test_replayed_trajectories_equal_the_original_step_by_step(
    tmp_path: Path, tool_format: ToolFormat
) -> None:
    async def collect(policy: Policy) -> Trajectory:
        backend = MemoryBackend({"/testbed/pkg/m.py": SOURCE.encode()})
        agent = quick_agent(tool_format=tool_format, prompt="deepswe_v1")
        request = GroupRequest(row=make_row(), iteration=0, phase="train", size=1)
        (group,) = await swe_scheduler(backend, policy, agent=agent).collect([request])
        return group.trajectories[0]

    first = await collect(OraclePolicy(tool_format=tool_format))
    assert (first.termination, first.reward) == (TerminationReason.SUBMITTED, 1.0)
    path = tmp_path / "stored.jsonl"
    for _ in range(2):  # a replay can be replayed
        write_trajectories(path, [first])
        again = await collect(ReplayPolicy.from_file(path))
        assert [_contents(step) for step in again.steps] == [_contents(step) for step in first.steps]
        assert again.patch == first.patch
        first = again


def _contents(step: Step) -> tuple[object, ...]:
    return step.thought, step.response, step.call, step.observation, step.error
