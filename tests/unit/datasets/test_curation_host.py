"""Host errors during curation: one drops its candidate, repeated ones end the curation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.datasets.curation.trials import despite_host
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
    return SimpleNamespace(host_failures=0)


async def test_failing_action_is_retried_before_its_candidate_is_dropped() -> None:
    run = curation()
    for _ in range(3):
        for _ in range(2):
            error = await despite_host(run, Action(failures=9))
            assert str(error) == "the disk of this machine is full"
        action = Action(failures=2)
        assert (await despite_host(run, action), action.calls) == ("done", 3)


async def test_repeated_host_errors_end_the_curation() -> None:
    run = curation()
    for _ in range(2):
        await despite_host(run, Action(failures=9))
    with pytest.raises(HostError, match=r"failed 3 candidates in a row: the disk of this machine is full"):
        await despite_host(run, Action(failures=9))
