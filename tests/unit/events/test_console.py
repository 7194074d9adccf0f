"""Console lines of a run without a web application."""

from __future__ import annotations

from io import StringIO
from typing import Any

from engine.events.console import ConsoleSink
from engine.events.types import CollectionProgress, RunProgress, RunStarted


class Nowhere:
    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        event_type(seq=1, epoch=1, time=0.0, **fields)
        return 1


def printed(event_type: type[Any], **fields: Any) -> str:
    stream = StringIO()
    ConsoleSink(Nowhere(), stream).emit(event_type, **fields)
    return stream.getvalue().rstrip()


def test_an_attempt_says_what_it_goes_on_from() -> None:
    assert printed(RunStarted, host="h", pid=1) == "started"
    assert printed(RunStarted, host="h", pid=1, rollouts_kept=0) == "started"
    assert printed(RunStarted, host="h", pid=1, rollouts_kept=12) == "resumed after 12 finished rollouts"
    assert printed(RunStarted, host="h", pid=1, resumed_from=0) == "resumed after 0 iterations"


def test_the_progress_of_a_collection_has_its_rate_and_cost() -> None:
    state = CollectionProgress(
        graded=30, solved=12, lost=2, running=8, steps=1, prompt_tokens=1, generated_tokens=1,
        per_hour=1200.0, seconds_left=96.0, cost=1.25,
    )  # fmt: skip
    assert printed(RunProgress, message="rollouts", done=32, total=64, collection=state) == (
        "rollouts: 32/64  solved 12/30  running 8  lost 2  an hour 1,200  left 0:01:36  US dollars 1.25"
    )
    assert printed(RunProgress, message="curating", done=1, total=2) == "curating: 1/2"
