"""Increments for a tab: its missing points and steps, or all where they cannot be appended."""

from __future__ import annotations

from webapp.live.consumer import Subscribe, _new_points, _new_steps
from webapp.live.fragments import Snapshot


def test_points_are_appended_or_replaced_as_a_whole() -> None:
    def rendered(x: list[float]) -> Snapshot:
        return Snapshot(seq=1, charts={"x": x, "columns": {"reward/mean": [0.1] * len(x)}})

    def subscription(point: float) -> Subscribe:
        return Subscribe(page="run", run=1, point=point, series=["reward/mean"])

    assert _new_points(rendered([0, 1, 2]), subscription(0), again=False) == {
        "x": [1, 2],
        "columns": {"reward/mean": [0.1, 0.1]},
    }
    assert _new_points(rendered([0, 1]), subscription(1), again=False) is None
    assert _new_points(rendered([0]), subscription(3), again=False) == {"reset": rendered([0]).charts}, (
        "resumed from a checkpoint"
    )
    assert _new_points(rendered([0, 1]), subscription(1), again=True) == {"reset": rendered([0, 1]).charts}
    other = Subscribe(page="run", run=1, point=0, series=["loss/value"])
    assert _new_points(rendered([0, 1]), other, again=False) == {"reset": rendered([0, 1]).charts}


def test_steps_are_sent_from_the_position_of_the_tab() -> None:
    three = Snapshot(seq=1, steps=("a", "b", "c"))
    assert _new_steps(three, Subscribe(page="trajectory", steps=1), again=False) == {
        "start": 1,
        "html": ["b", "c"],
    }
    assert _new_steps(three, Subscribe(page="trajectory", steps=3), again=False) is None
    assert _new_steps(three, Subscribe(page="trajectory", steps=9), again=False) == {
        "start": 0,
        "html": ["a", "b", "c"],
    }
    assert _new_steps(Snapshot(seq=1), Subscribe(page="trajectory", steps=2), again=True) == {
        "start": 0,
        "html": [],
    }
