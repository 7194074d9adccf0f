"""Host errors during curation: one drops its candidate, repeated ones end the curation."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from engine.datasets.curation.curate import _despite_host
from engine.errors import HostError


class Action:
    """Action that fails ``failures`` times, then succeeds."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise HostError("the disk of this machine is full")
        return "done"


def curation() -> Any:
    said: list[str] = []
    return SimpleNamespace(host_failures=[], fates=Counter(), said=said, say=said.append)


CANDIDATE: Any = SimpleNamespace(path="toy/numbers.py")


async def test_failing_action_is_retried_before_its_candidate_is_dropped() -> None:
    run = curation()
    for _ in range(3):
        assert await _despite_host(run, CANDIDATE, Action(failures=9)) is None
        assert await _despite_host(run, CANDIDATE, Action(failures=9)) is None
        action = Action(failures=2)
        assert (await _despite_host(run, CANDIDATE, action), action.calls) == ("done", 3)
    assert run.said == ["dropped a candidate in toy/numbers.py: the disk of this machine is full"] * 6
    assert run.fates == {"machine": 6}


async def test_repeated_host_errors_end_the_curation() -> None:
    run = curation()
    for _ in range(2):
        assert await _despite_host(run, CANDIDATE, Action(failures=9)) is None
    with pytest.raises(HostError, match=r"failed 3 candidates in a row: the disk of this machine is full"):
        await _despite_host(run, CANDIDATE, Action(failures=9))
