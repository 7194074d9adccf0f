"""Rules for pausing creation and refusing images, tested with explicit times."""

from __future__ import annotations

from engine.sandbox.pool.breaker import Breaker, ImageHealth


def test_consecutive_failed_starts_pause_creation_until_a_success() -> None:
    breaker = Breaker(failures=3, first_pause_s=10, longest_pause_s=30)
    assert [breaker.failed("boom", now=0.0) for _ in range(2)] == [False, False]
    assert breaker.room(now=0.0, starting=0) is None
    assert breaker.failed("boom", now=1.0)
    assert breaker.reason == "3 starts in a row failed; the last one: boom"
    assert breaker.room(now=10.9, starting=0) == 0
    assert breaker.seconds_left(2.0) == 9.0
    assert breaker.room(now=11.0, starting=0) == 1, "one start is tried after the pause"
    assert breaker.room(now=11.0, starting=1) == 0
    breaker.started()
    assert not breaker.reason
    assert breaker.room(now=11.0, starting=1) is None


def test_pauses_double_up_to_the_longest_while_starts_keep_failing() -> None:
    breaker = Breaker(failures=1, first_pause_s=10, longest_pause_s=30)
    now, pauses = 0.0, []
    for _ in range(4):
        breaker.failed("boom", now=now)
        pauses.append(breaker.seconds_left(now))
        now += pauses[-1]
    assert pauses == [10, 20, 30, 30]


def test_success_resets_the_count_of_failures() -> None:
    breaker = Breaker(failures=2)
    for _ in range(5):
        assert not breaker.failed("boom", now=0.0)
        breaker.started()
    assert not breaker.reason


def test_starts_that_fail_during_a_pause_do_not_prolong_it() -> None:
    breaker = Breaker(failures=2, first_pause_s=10)
    assert [breaker.failed("boom", now=n) for n in (0.0, 1.0, 2.0, 3.0)] == [False, True, False, False]
    assert breaker.seconds_left(3.0) == 8.0


def test_lasting_surplus_of_sandboxes_pauses_creation() -> None:
    breaker = Breaker(slack=2, patience_s=5)
    assert not breaker.counted(existing=15, wanted=10, now=0.0)
    assert not breaker.counted(existing=2, wanted=0, now=0.0), "a few that close are never too many"
    before = breaker.too_many
    assert not breaker.counted(existing=64, wanted=0, now=1.0), "an iteration has just ended"
    assert (before, breaker.too_many) == (False, True)
    assert not breaker.counted(existing=0, wanted=0, now=4.0)
    assert not breaker.counted(existing=16, wanted=10, now=5.0)
    assert breaker.counted(existing=16, wanted=10, now=10.0)
    assert breaker.reason == "16 sandboxes exist, but only 10 are wanted"
    assert breaker.room(now=11.0, starting=0) == 0


def test_image_is_refused_after_consecutive_failures_and_retried_later() -> None:
    images = ImageHealth(failures=2, refuse_s=60)
    assert not images.failed("bad", "404", now=0.0)
    assert not images.refusal("bad", now=0.0)
    assert images.failed("bad", "403", now=1.0)
    assert images.refusal("bad", now=2.0) == "image 'bad' failed 2 times in a row; the last time: 403"
    assert not images.refusal("good", now=2.0)
    assert images.troubled(now=2.0) == [{"image": "bad", "failures": 2, "reason": "403", "refused": True}]
    assert not images.refusal("bad", now=61.0), "one more start is tried"
    assert images.failed("bad", "403", now=61.0), "and refused again when that fails"
    images.started("bad")
    assert images.troubled(now=62.0) == []
