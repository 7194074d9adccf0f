"""Scores of a run that verifies by tests: patches by task, and the tests that agents wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webapp.core.contexts.numbers import whole
from webapp.core.selectors import Page, map_page
from webapp.evaluations.contexts.scores import ScoreRow, trajectory_urls
from webapp.rollouts.models.scores import ExaminedTest, Score
from webapp.rollouts.selectors import scores as reads
from webapp.runs.models.runs import Run


@dataclass(frozen=True, slots=True)
class TestRow:
    """A test that a testing agent wrote."""

    __test__ = False
    test: ExaminedTest
    task: str
    """Readable name of the task; its key where it is unknown."""
    url: str
    """URL of the agent's trajectory; empty where its run is not in the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestScoresPanel:
    """Context of the panel: patches by task in the order of the rule ``eb``, and written tests."""

    __test__ = False
    page: Page[ScoreRow]
    tests: Page[TestRow]
    totals: reads.TestTotals
    num_missing: int
    num_stale: int
    """Scores left out because a later attempt removed or repeated their rollouts."""
    unfinished: tuple[int, ...]
    """Runs that had not ended when they were read; rollouts finished later have no score."""
    only_missing: bool


def build_test_scores(run: Run, params: Mapping[str, str]) -> TestScoresPanel:
    """Build the panel of a run's scores and written tests as selected by the query string."""
    only_missing = params.get("scores") == "missing"
    page = reads.list_scores(run.pk, missing=only_missing, number=whole(params.get("page", "")) or 1)
    tests = reads.list_tests(run.pk, number=whole(params.get("tests", "")) or 1)
    tasks = [score.task_key for score in page.rows] + [test.task_key for test in tests.rows]
    names = reads.task_names(tasks)
    score_urls, test_urls = trajectory_urls(page.rows), trajectory_urls(tests.rows)
    return TestScoresPanel(
        page=map_page(
            page,
            lambda score: ScoreRow(
                score, names.get(score.task_key, score.task_key), score_urls.get(score.pk, "")
            ),
        ),
        tests=map_page(
            tests,
            lambda test: TestRow(test, names.get(test.task_key, test.task_key), test_urls.get(test.pk, "")),
        ),
        totals=reads.test_totals(run.pk),
        num_missing=reads.count_missing(run.pk),
        num_stale=reads.count_stale(Score, run.pk),
        unfinished=reads.unfinished_sources(run),
        only_missing=only_missing,
    )
