"""Pages affected by a batch of events."""

from __future__ import annotations

from typing import Any

import pytest

from engine.events.types import EVENT_ADAPTER
from tests.builders.sandbox_builders import pool
from tests.builders.web.event_builders import Stream, machine_use, ref
from webapp.core.permissions import Role
from webapp.ingestion.services.changes import MAX_NAMED, changes_of
from webapp.live.fragments import Subscription, is_affected
from webapp.models import Run

PAGES = {
    "overview": (), "runs": (), "sandboxes": (), "run": (), "health": ("d",), "iteration": ("train", "1"),
    "group": ("train", "1", "a"), "trajectory": ("train", "1", "a", "2"),
}  # fmt: skip
OF_THE_ROLLOUT = {"iteration", "group", "trajectory"}


def message(stream: Stream, **config: Any) -> dict[str, Any]:
    events = [EVENT_ADAPTER.validate_json(line) for line in stream.lines]
    return changes_of(Run(config=config), events).message(after=0)


def affected(changes: dict[str, Any], **params: str) -> set[str]:
    return {
        page
        for page, target in PAGES.items()
        if is_affected(Subscription(page, 1, target, tuple(params.items()), Role.VIEWER), changes)
    }


def test_step_affects_its_rollout_group_and_iteration() -> None:
    stream = Stream()
    stream.step(ref(1, "a", 2), 0)
    assert affected(message(stream)) == OF_THE_ROLLOUT
    assert affected(message(stream), tab="groups") == OF_THE_ROLLOUT
    assert affected(message(stream), tab="trajectories") == {*OF_THE_ROLLOUT, "run"}
    assert affected(message(stream, policy={"type": "endpoint"})) == {*OF_THE_ROLLOUT, "run"}, "it has a cost"


@pytest.mark.parametrize(
    ("other", "pages"),
    [
        (ref(1, "a", 3), {"iteration", "group"}), (ref(1, "b", 2), {"iteration"}), (ref(2, "a", 2), set()),
        (ref(1, "a", 2, phase="eval:heldout"), set()),
    ],
)  # fmt: skip
def test_step_of_another_rollout_affects_only_shared_pages(other: dict[str, Any], pages: set[str]) -> None:
    stream = Stream()
    stream.step(other, 0)
    assert affected(message(stream)) == pages


def test_rollout_starts_ends_and_finished_groups_affect_run_and_siblings() -> None:
    started, judged, ended = Stream(), Stream(), Stream()
    started.add("trajectory_started", ref=ref(1, "a", 5))
    judged.add("group_finished", iteration=1, phase="train", task_id="a", members=[])
    ended.finished(ref(1, "a", 2), steps=1)
    for stream in (started, judged, ended):
        assert affected(message(stream)) == {*OF_THE_ROLLOUT, "run"}


def test_pool_status_and_progress_affect_only_the_pages_that_show_them() -> None:
    stream = Stream()
    stream.add("pool_status", **pool())
    assert affected(message(stream)) == {"run", "sandboxes"}
    stream = Stream()
    stream.add("run_progress", message="m", done=1, total=2)
    assert affected(message(stream)) == {"run", "overview", "runs"}


def test_runs_of_other_experiments_do_not_affect_an_experiment() -> None:
    experiment = Subscription("experiment", None, ("3",), (), Role.VIEWER)
    stream = Stream()
    stream.add("run_progress", message="m", done=1, total=2)
    stream.add("alert", severity="error", code="collapse", message="reward fell")
    events = [EVENT_ADAPTER.validate_json(line) for line in stream.lines]
    runs = {number: Run(config={}, experiment_id=number) for number in (3, 4, None)}
    shows = {
        number: is_affected(experiment, changes_of(run, events).message(after=0))
        for number, run in runs.items()
    }
    assert shows == {3: True, 4: False, None: False}
    assert is_affected(experiment, None), "a message was lost, or the run moved to another experiment"


def test_reports_of_the_machine_affect_only_their_tab_and_the_events() -> None:
    stream = Stream()
    stream.add("system_sampled", **machine_use())
    assert affected(message(stream)) == set()
    assert affected(message(stream), tab="groups") == set()
    assert affected(message(stream), tab="system") == {"run"}


def test_other_events_and_numerous_changes_affect_every_page() -> None:
    stream = Stream()
    stream.add("alert", severity="error", code="collapse", message="reward fell")
    assert affected(message(stream)) == set(PAGES)
    many = Stream()
    for index in range(MAX_NAMED + 1):
        many.step(ref(7, "z", index), 0)
    assert affected(message(many)) == set(PAGES)
