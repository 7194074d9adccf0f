"""Admission and batches: staleness never exceeds its bound, and waiting always ends."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.orchestrator.training.schedule import OpenGroup, capacity, choose_batch


class Simulation:
    """Groups of a run whose rollouts end in an arbitrary order."""

    def __init__(self, *, batch: int, staleness: int, in_order: bool) -> None:
        self.rules = {"batch": batch, "staleness": staleness}
        self.in_order = in_order
        self.updates = self.admitted = 0
        self.open: dict[int, OpenGroup] = {}
        self.batches: list[list[int]] = []
        self.lags: list[int] = []

    def admit(self, most: int | None = None) -> None:
        room = capacity(admitted=self.admitted, updates=self.updates, **self.rules)
        for _ in range(room if most is None else min(room, most)):
            self.open[self.admitted] = OpenGroup(admitted_at=self.updates, is_complete=False)
            self.admitted += 1

    def complete(self, number: int) -> None:
        self.open[number] = OpenGroup(admitted_at=self.open[number].admitted_at, is_complete=True)

    def update(self) -> bool:
        groups, numbers = list(self.open.values()), list(self.open)
        chosen = choose_batch(groups, updates=self.updates, in_order=self.in_order, **self.rules)
        if chosen is None:
            return False
        self.lags += [self.updates - groups[place].admitted_at for place in chosen]
        self.batches.append([numbers[place] for place in chosen])
        for number in self.batches[-1]:
            del self.open[number]
        self.updates += 1
        return True


@settings(max_examples=300, deadline=None)
@given(
    batch=st.integers(1, 5),
    staleness=st.integers(0, 5),
    in_order=st.booleans(),
    seed=st.integers(0, 10_000),
    stubborn=st.integers(0, 3),
)
def test_no_group_is_staler_than_the_bound_and_none_is_lost(
    batch: int, staleness: int, in_order: bool, seed: int, stubborn: int
) -> None:
    """Some groups end only when nothing else can: the worst stragglers that there are."""
    rng = random.Random(seed)
    run = Simulation(batch=batch, staleness=staleness, in_order=in_order)
    for _ in range(200):
        run.admit(None if rng.random() < 0.7 else rng.randrange(3))
        unfinished = [number for number, group in run.open.items() if not group.is_complete]
        quick = [number for number in unfinished if number % 4 >= stubborn]
        if unfinished and (rng.random() < 0.8 or not quick):
            run.complete(rng.choice(quick or unfinished))
        run.update()
    while run.open:  # everything admitted ends; the last batches may lack groups
        run.admit()
        for number in list(run.open):
            run.complete(number)
        assert run.update(), "all groups are complete, so there is a batch"
        if run.updates > 300:
            break
    trained = [number for found in run.batches for number in found]
    assert len(trained) == len(set(trained)) == batch * run.updates
    assert max(run.lags) <= staleness
    assert all(found == sorted(found) for found in run.batches), "the oldest come first"
    if in_order:
        assert trained == list(range(len(trained)))


@given(batch=st.integers(1, 8), updates=st.integers(0, 50))
def test_without_staleness_admission_is_synchronous(batch: int, updates: int) -> None:
    assert capacity(admitted=updates * batch, updates=updates, batch=batch, staleness=0) == batch
    assert capacity(admitted=(updates + 1) * batch, updates=updates, batch=batch, staleness=0) == 0


def test_a_straggler_that_is_due_holds_the_batch_up() -> None:
    late = OpenGroup(admitted_at=0, is_complete=False)
    quick = [OpenGroup(admitted_at=1, is_complete=True)] * 3
    assert choose_batch([late, *quick], updates=1, batch=2, staleness=2) == (1, 2)
    assert choose_batch([late, *quick], updates=2, batch=2, staleness=2) is None


def test_stragglers_are_waited_for_before_too_many_are_due_at_once() -> None:
    """Two groups have to be trained on by update 2, and each update has room for one."""
    late = OpenGroup(admitted_at=0, is_complete=False)
    fresh = OpenGroup(admitted_at=1, is_complete=True)
    assert choose_batch([late, late, fresh], updates=1, batch=1, staleness=2) is None
    assert choose_batch([late, fresh], updates=1, batch=1, staleness=2) == (1,)
