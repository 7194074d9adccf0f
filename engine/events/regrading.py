"""Record of a trajectory whose patch was graded again."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, FiniteFloat

from engine.events.record import Int, Record
from engine.types import Verdict

MAX_FAILED_TESTS = 20
"""Maximum number of failed tests named per patch; the rest are counted."""
MAX_TEST_CHARS = 300
"""Maximum length of a test's name; longer ones are cut."""
MAX_DETAIL_CHARS = 1000


class Obstacle(StrEnum):
    """Reason why a trajectory cannot be graded again."""

    NO_ROW = "no_row"
    """No row has its task's id or instance id."""
    OTHER_TREE = "other_tree"
    """The row with its task's instance id starts from other files, so that the patch does not fit."""
    NO_PATCH = "no_patch"
    """The agent's changes could not be made into a patch."""
    ENVIRONMENT = "environment"
    """Its environment decided whether the goal was reached."""
    OWN_SANDBOX = "own_sandbox"
    """Its tests check the sandbox in which the agent worked, which no longer exists."""
    WRITTEN_TESTS = "written_tests"
    """Its patch consists of tests that an agent wrote."""
    UNGRADABLE = "ungradable"
    """The row cannot be graded."""


class RegradeRecord(Record):
    """Original and new verdict of one trajectory.

    Without a new verdict ``obstacle`` is set. The new verdict ``infra_error`` means that infrastructure
    failed in every attempt.
    """

    old_verdict: Verdict
    """Verdict of the trajectory's own grading."""
    old_reward: FiniteFloat
    verdict: Verdict | None = None
    reward: FiniteFloat | None = None
    """None without a verdict, and for the verdict ``infra_error``."""
    obstacle: Obstacle | None = None
    detail: str = Field(default="", max_length=MAX_DETAIL_CHARS)
    """Sentence about the verdict or the obstacle."""
    failed_tests: list[str] = Field(default_factory=list, max_length=MAX_FAILED_TESTS)
    """Required tests that did not pass, the first ones."""
    num_failed_tests: Int = Field(default=0, ge=0)
    dataset: str = Field(default="", max_length=200)
    """Dataset of the row under which the patch was graded; empty without a row."""
    row: str = Field(default="", max_length=64)
    """Task id of that row, which may differ from the trajectory's."""
    content: str = Field(default="", max_length=64)
    """Hash of that row's content (``engine.datasets.health.row_content``)."""
