"""Trajectory page: windows of steps, search over all steps, and descriptions of tool calls."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import make_user, signed_in
from webapp.core.permissions import Role
from webapp.models import Step, Trajectory
from webapp.rollouts.contexts.actions import action_body
from webapp.rollouts.contexts.steps import PAGE_STEPS

pytestmark = pytest.mark.django_db
MANY = 60


def long_rollout(yard: Yard, **fields: Any) -> Trajectory:
    """Ingest a rollout with more steps than a page shows in full."""
    ref = yard.ref(0, 0, 9)
    yard.stream.add("trajectory_started", ref=ref, sandbox_id="s")
    for index in range(MANY):
        texts = {"observation": f"printed by step {index}", "thought": f"think {index}"} | fields
        yard.stream.step(
            ref, index, tool="execute_bash", arguments={"command": f"make part-{index}"}, **texts
        )
    yard.stream.finished(ref, steps=MANY)
    yard.post()
    return Trajectory.objects.get(run=yard.run, phase="train", iteration=0, index=9)


def address_of(yard: Yard, index: int = 9) -> str:
    return f"/runs/{yard.run.pk}/train/0/{yard.tasks[0].key}/{index}/"


def whole_steps(html: str) -> list[int]:
    return [int(number) for number in re.findall(r'class="step"\s+id="step-(\d+)"', html)]


def test_long_page_shows_a_window_of_steps_and_links_to_the_others() -> None:
    yard = make_yard(iterations=1, group_size=2)
    long_rollout(yard)
    viewer = signed_in(Role.VIEWER)
    page = viewer.get(address_of(yard)).content.decode()
    assert whole_steps(page) == list(range(PAGE_STEPS))
    assert len(re.findall(r'<article class="step', page)) == MANY, "every step has its anchor"
    assert '<a href="?from=45#step-45">' in page
    assert "make part-45" in page
    assert "printed by step 45" not in page
    assert len(re.findall(r'data-key="strip-\d+"', page)) == MANY
    page = viewer.get(address_of(yard), {"from": "45"}).content.decode()
    assert whole_steps(page) == list(range(45, MANY))
    assert "printed by step 45" in page


def test_step_windows_are_bounded_by_text_and_never_empty() -> None:
    yard = make_yard(iterations=1, group_size=2)
    trajectory = long_rollout(yard, observation="x" * 19_000)
    viewer = signed_in(Role.VIEWER)
    page = viewer.get(address_of(yard)).content.decode()
    assert whole_steps(page) == [0, 1]
    window = viewer.get(f"/trajectories/{trajectory.pk}/steps/", {"from": "30"}).content.decode()
    assert whole_steps(window)[0] == 30
    assert 5 < len(whole_steps(window)) < 12
    past = viewer.get(f"/trajectories/{trajectory.pk}/steps/", {"from": "999"})
    assert (past.status_code, whole_steps(past.content.decode())) == (200, [])


def test_search_finds_folded_truncated_and_unloaded_text() -> None:
    yard = make_yard(iterations=1, group_size=2)
    long_text = "line\n" * 5_000 + "Needle <b> 100%_\\ at the end"
    trajectory = long_rollout(yard, observation=long_text)
    viewer = signed_in(Role.VIEWER)
    address = f"/trajectories/{trajectory.pk}/found/"
    response = viewer.get(address, {"find": "needle <B>"})
    assert (response.context["found"].num_hits, response.context["found"].num_steps) == (MANY, MANY)
    assert "<mark>Needle &lt;b&gt;</mark> 100%_\\ at the end" in response.content.decode()
    assert viewer.get(address, {"find": "100%_\\"}).context["found"].num_hits == MANY
    assert viewer.get(address, {"find": "100__"}).context["found"].num_hits == 0
    page = viewer.get(address_of(yard), {"find": "make part-59"})
    (hit,) = page.context["found"].hits
    assert (hit.index, hit.part, hit.url) == (59, "action", "?from=59&find=make+part-59#step-59")
    assert "no match" in viewer.get(address, {"find": "not there"}).content.decode()
    thoughts = viewer.get(address, {"find": "think 5"}).context["found"]
    assert {hit.part for hit in thoughts.hits} == {"thinking"}
    assert thoughts.num_hits == 11


def test_truncated_part_is_served_whole_on_demand_and_stays_escaped() -> None:
    yard = make_yard(iterations=1, group_size=2)
    ref = yard.ref(0, 0, 9)
    yard.stream.add("trajectory_started", ref=ref, sandbox_id="s")
    new = "\n".join(f"<script>{n}</script>" for n in range(3_000))
    arguments = {"command": "create", "path": "/testbed/a.txt", "file_text": new}
    observation = "\x1b[31m<img src=x>\u202e\n" * 900
    yard.stream.step(ref, 0, tool="str_replace_editor", arguments=arguments, observation=observation)
    yard.post()
    trajectory = Trajectory.objects.get(run=yard.run, phase="train", iteration=0, index=9)
    viewer = signed_in(Role.VIEWER)
    page = viewer.get(address_of(yard)).content.decode()
    assert "showing 200 of 3\u202f000 lines" in page
    for part, least in (("action", 3_000), ("observation", 900), ("thought", 1), ("response", 1)):
        whole = viewer.get(f"/trajectories/{trajectory.pk}/steps/0/{part}/", {"html": "1"}).content.decode()
        assert whole.count("\n") + whole.count('class="line') >= least, part
        assert "<script>" not in whole
        assert "<img" not in whole
        assert "\u202e" not in whole
    plain = viewer.get(f"/trajectories/{trajectory.pk}/steps/0/action/")
    assert plain["Content-Type"].startswith("text/plain")
    assert new in plain.content.decode()


def test_failed_tests_come_before_passed_ones() -> None:
    yard = make_yard(iterations=1, group_size=2)
    ref = yard.ref(0, 0, 9)
    yard.stream.add("trajectory_started", ref=ref, sandbox_id="s")
    outcomes = ("passed", "failed", "xfail", "error")
    tests = [{"test_id": f"t::{name}", "kind": "pass_to_pass", "outcome": name} for name in outcomes]
    yard.stream.add(
        "trajectory_finished", ref=ref, termination="submitted", verdict="failed", reward=0.0, num_steps=0,
        tests=tests,
    )  # fmt: skip
    yard.post()
    page = signed_in(Role.VIEWER).get(address_of(yard)).content.decode()
    assert re.findall(r"<code>t::(\w+)</code>", page) == ["failed", "error", "passed", "xfail"]
    assert "2 passed</summary>" in page


def test_the_prompt_and_imported_fields_are_shown_and_escaped() -> None:
    yard = make_yard(iterations=1, group_size=2)
    ref = yard.ref(0, 0, 9)
    yard.stream.add("trajectory_started", ref=ref, sandbox_id="s")
    yard.stream.add(
        "trajectory_finished", ref=ref, termination="submitted", verdict="passed", reward=1.0, num_steps=0,
        opening=[
            {"role": "system", "content": "<script>be brief</script>\u202e"},
            {"role": "user", "content": "fix"}, {"role": "tools", "content": "[]"},
        ],
        imported={
            "exp_name": "first", "verifier_prob": None,
            "agent_args": {"llm_name": "<b>m</b>", "long": "x\ny"},
            "regression_test_output": "hidden test", "<i>": 3,
        },
    )  # fmt: skip
    yard.post()
    viewer = signed_in(Role.VIEWER)
    page = viewer.get(address_of(yard))
    html = page.content.decode()
    assert [message.label for message in page.context["opening"]] == [
        "system message",
        "user message",
        "declared functions",
    ]
    assert "&lt;script&gt;be brief" in html
    for hostile in ("<script>be", "\u202e", "<b>m", "<i>"):
        assert hostile not in html
    fields = {field.name: field.text.text for field in page.context["imported"]}
    assert fields["agent_args.llm_name"] == "<b>m</b>"
    assert fields["verifier_prob"] == ""
    assert "regression_test_output" not in fields, "it may contain hidden tests"
    assert "Sandbox attempts" not in html
    answer = viewer.get(f"/api/v1/trajectories/{page.context['trajectory'].pk}").json()
    assert answer["opening"][1] == {"role": "user", "content": "fix"}
    assert answer["imported_fields"]["exp_name"] == "first"
    operator = Client()
    operator.force_login(make_user("olga", Role.OPERATOR))
    assert "hidden test" in operator.get(address_of(yard)).content.decode()


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "title", "note"),
    [
        ("execute_bash", {"command": "\n  pytest -q\nls"}, "command", "pytest -q", ""),
        ("execute_ipython_cell", {"code": "1 + 1"}, "command", "1 + 1", "Python"),
        ("str_replace_editor", {"command": "view", "path": "/testbed/a.py", "view_range": "[3, -1]"},
         "view", "a.py", "lines 3 to the end"),
        ("str_replace_editor", {"command": "create", "path": "b.py", "file_text": "x"},
         "edit", "b.py", "create"),
        ("file_editor", {"command": "insert", "path": "b.py", "new_str": "x", "insert_line": "3"},
         "edit", "b.py", "insert after line 3"),
        ("file_editor", {"command": "undo_edit", "path": "b.py"}, "edit", "b.py", "undo the last edit"),
        ("search", {"search_term": "def f", "path": "src"}, "search", "def f", "in src"),
        ("read_file", {"path": "/testbed/a.py"}, "view", "a.py", ""),
        ("edit", {"path": "b.py", "old_str": "x", "new_str": "y"}, "edit", "b.py", "replace"),
        ("edit", {"search": "3:4", "end_of_edit": "y"}, "call", "edit", ""),
        ("submit", {}, "finish", "submit", ""),
        ("", {}, "none", "no tool call could be read", ""),
    ],
)  # fmt: skip
def test_tool_calls_are_described_by_their_action(
    tool: str, arguments: dict[str, Any], kind: str, title: str, note: str
) -> None:
    body = action_body(Step(tool=tool, arguments=arguments))
    assert (body.kind, body.title, body.note) == (kind, title, note)
    assert (body.diff is not None) == (kind == "edit" and "undo" not in note)
