"""Submission folders in the format of github.com/SWE-bench/experiments.

    all_preds.jsonl                        one prediction per instance
    metadata.yaml                          name, report, authors, models, attempts
    README.md                              results and the checklist
    results/{results,resolved_by_repo}.json
    logs/INSTANCE/{patch.diff,report.json,test_output.txt}
    trajs/INSTANCE.json                    reasoning trace

``submission_checks`` checks such folders.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from engine.events.harness import Prediction

PREDICTIONS, METADATA, README = "all_preds.jsonl", "metadata.yaml", "README.md"
LOG_FILES = ("patch.diff", "test_output.txt")
SEVERAL_ATTEMPTS = "2+"
CHECKLIST = (
    "Is a pass@1 submission (does not attempt the same task instance more than once)",
    "Does not use SWE-bench test knowledge (`PASS_TO_PASS`, `FAIL_TO_PASS`)",
    "Does not use the `hints` field in SWE-bench",
    "Does not have web-browsing OR has taken steps to prevent lookup of SWE-bench solutions via web-browsing",
)
"""Statements that the repository asks to confirm, in its words."""
_BEST_OF_K = (
    "Is a Best@k submission: `{rule}` selects the submitted one of several attempts per instance, "
    "without the evaluation's tests"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionInfo:
    """Description of a submission; empty fields are left for its authors to enter."""

    name: str
    """Name on the leaderboard."""
    authors: tuple[str, ...] = ()
    site: str = ""
    """Address of the system."""
    report: str = ""
    """Address of a technical report, which every submission needs."""
    models: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    open_model: bool = False
    """Whether the model's weights are public."""
    open_system: bool = False
    """Whether the system's code is public."""
    rule: str = ""
    """Rule that selected one of several attempts; empty where every instance was attempted once."""
    confirmed: bool = False
    """Whether the authors confirm the checklist's statements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedInstance:
    """The submitted rollout of one instance."""

    instance_id: str
    repo: str
    patch: str
    """Empty where the agent changed nothing."""
    resolved: bool
    report: Mapping[str, Any] | None
    """Per-instance report (``engine.events.harness.instance_report``); None where the tests did not end."""
    test_output: str
    trajectory: str
    """Reasoning trace as JSON."""


def submission_files(
    info: SubmissionInfo, instances: Iterable[SubmittedInstance], split: Mapping[str, str] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield the path within the folder and the content of every file, one instance at a time.

    Args:
        info: description of the submission.
        instances: submitted rollouts.
        split: repository of every instance of the benchmark's split. Those without a rollout are submitted
            with an empty patch, since the leaderboard divides by all; None adds none.
    """
    lines: list[str] = []
    outcomes: dict[str, list[str]] = {"no_generation": [], "no_logs": [], "resolved": []}
    totals: Counter[str] = Counter()
    resolved: Counter[str] = Counter()
    missing = dict(split or {})
    for instance in instances:
        name = instance.instance_id
        missing.pop(name, None)
        lines.append(_prediction(info, name, instance.patch).line())
        totals[instance.repo] += 1
        resolved[instance.repo] += instance.resolved
        if not instance.patch:
            outcomes["no_generation"].append(name)
        elif instance.report is None:
            outcomes["no_logs"].append(name)
        if instance.resolved:
            outcomes["resolved"].append(name)
        yield f"trajs/{file_name(name)}.json", instance.trajectory.encode("utf-8", "replace")
        yield from _logs(instance)
    for name, repo in sorted(missing.items()):
        lines.append(_prediction(info, name, "").line())
        totals[repo] += 1
        outcomes["no_generation"].append(name)
    by_repo = {repo: {"resolved": resolved[repo], "total": totals[repo]} for repo in sorted(totals)}
    yield PREDICTIONS, "".join(lines).encode()
    yield METADATA, _metadata(info).encode()
    yield README, _readme(info, by_repo, outcomes).encode()
    yield "results/results.json", _json(outcomes)
    yield "results/resolved_by_repo.json", _json(by_repo)


def file_name(instance_id: str) -> str:
    """Return an instance's id as a single path component; ids of the benchmark are unchanged."""
    return re.sub(r"[^A-Za-z0-9._+=@-]", "_", instance_id).lstrip(".") or "_"


def _prediction(info: SubmissionInfo, instance: str, patch: str) -> Prediction:
    return Prediction(instance_id=instance, model_name_or_path=info.name, model_patch=patch)


def _logs(one: SubmittedInstance) -> Iterator[tuple[str, bytes]]:
    """Yield an instance's logs; an empty patch has none, since the harness does not run it."""
    if not one.patch:
        return
    folder = f"logs/{file_name(one.instance_id)}"
    yield f"{folder}/patch.diff", one.patch.encode("utf-8", "replace")
    yield f"{folder}/test_output.txt", one.test_output.encode("utf-8", "replace")
    if one.report is not None:
        yield f"{folder}/report.json", _json({one.instance_id: one.report})


def _metadata(info: SubmissionInfo) -> str:
    data = {
        "info": {
            "name": info.name,
            "authors": list(info.authors),
            "report": info.report,
            "site": info.site,
        },
        "tags": {
            "checked": False,
            "model": list(info.models),
            "org": list(info.organizations),
            "os_model": info.open_model,
            "os_system": info.open_system,
            "system": {"attempts": SEVERAL_ATTEMPTS if info.rule else "1"},
        },
    }
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _readme(
    info: SubmissionInfo, by_repo: Mapping[str, Mapping[str, int]], outcomes: Mapping[str, list[str]]
) -> str:
    total = sum(counts["total"] for counts in by_repo.values())
    solved = len(outcomes["resolved"])
    share = f" ({100 * solved / total:.2f}%)" if total else ""
    mark = "x" if info.confirmed else " "
    statements = (_BEST_OF_K.format(rule=info.rule), *CHECKLIST[1:]) if info.rule else CHECKLIST
    return "\n".join(
        [
            f"# {info.name}",
            "",
            f"Resolved {solved} of {total} instances{share}.",
            f"{len(outcomes['no_generation'])} have no patch, {len(outcomes['no_logs'])} no report of tests.",
            "",
            *([f"Report: {info.report}", ""] if info.report else []),
            *([f"Authors: {', '.join(info.authors)}", ""] if info.authors else []),
            "| Repository | Resolved | Instances |",
            "|---|---|---|",
            *(f"| {repo} | {counts['resolved']} | {counts['total']} |" for repo, counts in by_repo.items()),
            "",
            "## Checklist",
            "",
            *(f"- [{mark}] {statement}" for statement in statements),
            "",
        ]
    )


def _json(data: object) -> bytes:
    return f"{json.dumps(data, indent=4)}\n".encode()
