"""Submission of an evaluation to SWE-bench/experiments: description, files and checks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass

from django.urls import reverse
from django.utils import timezone

from engine.errors import ConfigError, MissingScoreError, Problem
from engine.evaluation.submission import SubmissionInfo, submission_files
from engine.evaluation.submission_checks import check_submission
from engine.verifiers.selection.rules import ORACLE, RULES
from webapp.core.contexts.frame import Crumb, phase_label, run_crumbs
from webapp.core.contexts.numbers import MOST, MOST_ID, whole
from webapp.core.streaming import in_threads, zipped
from webapp.evaluations.selectors.predictions import split_instances
from webapp.evaluations.selectors.submissions import submitted_instances
from webapp.rollouts.selectors.attempts import Point, Verifier, open_tasks, verifiers
from webapp.runs.models.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submission as described by the user."""

    point: Point
    info: SubmissionInfo
    index: int = 0
    """Number of the attempt that is submitted, without a rule."""
    verifier: int | None = None
    """Verifier's run whose P(YES) the rule uses."""
    tests: int | None = None
    """Verifier's run whose passed tests the rule uses."""

    @property
    def folder(self) -> str:
        """Return the name of the submission's folder, which begins with today's date."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.info.name).strip("-.")
        return f"{timezone.now():%Y%m%d}_{name or 'submission'}"

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Return path and content of every file; lost instances of the split have an empty patch.

        Rollouts are selected at the call; the files are generated lazily.

        Raises:
            ConfigError: the attempt, rule or verifier does not exist or must not be used.
            MissingScoreError: a rollout lacks a score that the rule needs.
        """
        chosen = submitted_instances(
            self.point, index=self.index, rule=self.info.rule, verifier=self.verifier, tests=self.tests
        )
        return submission_files(self.info, chosen, self._split())

    def findings(self) -> list[str]:
        """Return the problems of the submission. Raises ConfigError, MissingScoreError."""
        return self.check(self.files())

    def check(self, files: Iterable[tuple[str, bytes]]) -> list[str]:
        """Return the problems of the submission's files; each file is read once."""
        ended, left_out = open_tasks(self.point)
        unfinished = [] if ended else [f"the evaluation has not ended; tasks left out: {len(left_out)}"]
        return unfinished + check_submission(self.folder, files, self._split() or None)

    def _split(self) -> dict[str, str]:
        point = self.point
        return split_instances(point.run, phase=point.phase, iteration=point.iteration)

    def archive(self) -> AsyncIterator[bytes]:
        """Return a lazily generated ZIP archive of the folder. Raises the errors of ``files`` at the call."""
        return in_threads(zipped(self.folder, self.files()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionContext:
    """Context of the submission page."""

    section: str
    crumbs: tuple[Crumb, ...]
    run: Run
    title: str
    submission: Submission
    rules: tuple[str, ...]
    verifiers: tuple[Verifier, ...]
    """Verifiers' runs that judged these rollouts."""
    testers: tuple[Verifier, ...]
    """Verifiers' runs that ran tests on their patches."""
    checked: bool
    """Whether a check was requested, which reads every step of every submitted rollout."""
    findings: tuple[str, ...]
    error: str
    """Reason why there are no files; empty without one."""
    zip_url: str


def submission_of(point: Point, params: Mapping[str, str]) -> Submission:
    """Parse the submission of a query string; the run's model is the default.

    Raises:
        ConfigError: the number of the attempt or of a verifier's run is not a number.
    """
    return Submission(
        point=point,
        info=_info_of(point, params),
        index=_number(params, "index", most=MOST) or 0,
        verifier=_number(params, "verifier", most=MOST_ID),
        tests=_number(params, "tests", most=MOST_ID),
    )


def _info_of(point: Point, params: Mapping[str, str]) -> SubmissionInfo:
    policy = point.run.config.get("policy", {})
    model = str(policy.get("model") or policy.get("checkpoint") or "")
    return SubmissionInfo(
        name=params.get("name", "").strip() or f"trainyard-run-{point.run.pk}",
        authors=_listed(params.get("authors", "")),
        site=params.get("site", "").strip(),
        report=params.get("report", "").strip(),
        models=_listed(params.get("models", model)),
        organizations=_listed(params.get("organizations", "")),
        open_model=params.get("open_model") == "on",
        open_system=params.get("open_system") == "on",
        rule=params.get("rule", ""),
        confirmed=params.get("confirmed") == "on",
    )


def _number(params: Mapping[str, str], name: str, *, most: int) -> int | None:
    """Return a number of the query string; None where it is empty. Raises ConfigError."""
    text = params.get(name, "").strip()
    if not text:
        return None
    number = whole(text, most=most)
    if number is None:
        raise ConfigError(Problem(f"expected a whole number from 0 to {most}, not '{text}'", name))
    return number


def build_submission(point: Point, params: Mapping[str, str], *, error: str = "") -> SubmissionContext:
    """Build the context of the submission page.

    Args:
        point: the evaluation.
        params: the query string.
        error: reason why a download was refused; empty without one.
    """
    submission = Submission(point=point, info=_info_of(point, params))
    checked, findings = "check" in params, list[str]()
    try:
        submission = submission_of(point, params)
        findings = submission.findings() if checked and not error else []
    except (ConfigError, MissingScoreError) as problem:
        error = str(problem)
    known = verifiers(point)
    address = [point.run.pk, point.phase, point.iteration]
    report = Crumb(phase_label(point.phase, point.iteration), reverse("evaluation-report", args=address))
    return SubmissionContext(
        section="runs",
        crumbs=run_crumbs(point.run, report, Crumb("submission")),
        run=point.run,
        title=phase_label(point.phase, point.iteration),
        submission=submission,
        rules=tuple(name for name in RULES if name != ORACLE.name),
        verifiers=tuple(verifier for verifier in known if not verifier.by_tests),
        testers=tuple(verifier for verifier in known if verifier.by_tests),
        checked=checked,
        findings=tuple(findings),
        error=error,
        zip_url=reverse("evaluation-submission-zip", args=address),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
