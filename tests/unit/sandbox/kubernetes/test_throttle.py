"""The write budget: its average, its burst, and what a refusal does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.sandbox.kubernetes.throttle import TokenBucket, pause_after


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(
    rate=st.floats(0.5, 100),
    burst=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 2), min_size=1, max_size=200),
)
def test_no_window_holds_more_than_the_budget(rate: float, burst: int, gaps: list[float]) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, burst, clock)
    sent = []
    for gap in gaps:
        clock.now += gap
        sent.append(clock.now + bucket.reserve())
    assert sent == sorted(sent)
    for first in range(0, len(sent), 7):
        for last in range(first, len(sent), 11):
            assert last - first + 1 <= burst + rate * (sent[last] - sent[first]) + 1e-6


def test_a_refusal_closes_it_for_everybody() -> None:
    clock = Clock()
    bucket = TokenBucket(10, 5, clock)
    bucket.close_for(3)
    bucket.close_for(1)
    assert bucket.reserve() == 3
    clock.now = 4
    assert bucket.reserve() == 0


def test_pauses_grow_and_never_undercut_what_was_asked() -> None:
    assert all(0 < pause_after(n) <= 15 for n in range(1, 50))
    assert min(pause_after(8) for _ in range(50)) > max(pause_after(2) for _ in range(50))
    assert pause_after(1, retry_after=7) >= 7
