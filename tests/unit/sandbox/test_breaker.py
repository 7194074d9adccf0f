"""When creation pauses and when an image is refused: rules over times, no clock involved."""

from __future__ import annotations

from engine.sandbox.pool.breaker import Breaker, ImageHealth


def test_failed_starts_in_a_row_pause_and_one_success_ends_it() -> None:
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


def test_pauses_double_up_to_the_longest_while_the_trial_fails() -> None:
    breaker = Breaker(failures=1, first_pause_s=10, longest_pause_s=30)
    now, pauses = 0.0, []
    for _ in range(4):
        breaker.failed("boom", now=now)
        pauses.append(breaker.seconds_left(now))
        now += pauses[-1]
    assert pauses == [10, 20, 30, 30]


def test_a_success_between_failures_forgets_them() -> None:
    breaker = Breaker(failures=2)
    for _ in range(5):
        assert not breaker.failed("boom", now=0.0)
        breaker.started()
    assert not breaker.reason


def test_starts_that_were_under_way_do_not_prolong_a_pause() -> None:
    breaker = Breaker(failures=2, first_pause_s=10)
    assert [breaker.failed("boom", now=n) for n in (0.0, 1.0, 2.0, 3.0)] == [False, True, False, False]
    assert breaker.seconds_left(3.0) == 8.0


def test_more_boxes_than_anybody_wants_pause() -> None:
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


def test_an_image_is_refused_after_failures_in_a_row_and_tried_again_later() -> None:
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
