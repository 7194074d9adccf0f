"""Flips between two verdicts of one patch."""

from __future__ import annotations

import pytest

from engine.evaluation.flips import FLIPS, flip_of, outcome_of
from engine.types import Verdict


@pytest.mark.parametrize(
    ("old", "new", "flip"),
    [
        (Verdict.PASSED, Verdict.FAILED, "passed_failed"),
        (Verdict.PASSED, Verdict.TEST_TIMEOUT, "passed_failed"),
        (Verdict.PATCH_FAILED, Verdict.PASSED, "failed_passed"),
        (Verdict.PASSED, Verdict.TAMPERED, "passed_tampered"),
        (Verdict.TAMPERED, Verdict.FAILED, "tampered_failed"),
        (Verdict.FAILED, Verdict.PATCH_FAILED, ""),
        (Verdict.PASSED, Verdict.PASSED, ""),
        (Verdict.PASSED, Verdict.INFRA_ERROR, ""),
        (Verdict.PASSED, None, ""),
    ],
)
def test_flip_is_a_change_between_passed_failed_and_tampered(
    old: Verdict, new: Verdict | None, flip: str
) -> None:
    assert flip_of(old, new) == flip


def test_every_change_of_outcome_is_a_kind_of_flip() -> None:
    graded = [verdict for verdict in Verdict if verdict is not Verdict.INFRA_ERROR]
    assert {flip_of(old, new) for old in graded for new in graded} == {"", *FLIPS}
    with pytest.raises(ValueError, match="no outcome"):
        outcome_of(Verdict.INFRA_ERROR)
