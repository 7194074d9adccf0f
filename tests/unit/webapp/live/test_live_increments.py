"""A tab is sent the points and steps that it lacks, or all of them where they cannot be appended."""

from __future__ import annotations

from webapp.live.consumer import Subscribe, _new_points, _new_steps
from webapp.live.fragments import Snapshot


def test_points_are_added_or_made_anew() -> None:
    def found(x: list[float]) -> Snapshot:
        return Snapshot(seq=1, charts={"x": x, "columns": {"reward/mean": [0.1] * len(x)}})

    def wanted(point: float) -> Subscribe:
        return Subscribe(page="run", run=1, point=point, series=["reward/mean"])

    assert _new_points(found([0, 1, 2]), wanted(0), again=False) == {
        "x": [1, 2],
        "columns": {"reward/mean": [0.1, 0.1]},
    }
    assert _new_points(found([0, 1]), wanted(1), again=False) is None
    assert _new_points(found([0]), wanted(3), again=False) == {"reset": found([0]).charts}, (
        "resumed from a checkpoint"
    )
    assert _new_points(found([0, 1]), wanted(1), again=True) == {"reset": found([0, 1]).charts}
    other = Subscribe(page="run", run=1, point=0, series=["loss/value"])
    assert _new_points(found([0, 1]), other, again=False) == {"reset": found([0, 1]).charts}


def test_steps_are_sent_from_where_the_tab_is() -> None:
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
