"""Results of runs that make or validate a dataset."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse

from engine.events.health import RowStatus
from engine.types import RunState
from webapp.core.contexts.curation_funnel import build_funnel
from webapp.core.contexts.row_status import LOOKS
from webapp.core.contexts.words import count, in_words
from webapp.datasets.models.datasets import Dataset
from webapp.datasets.models.health import Validation
from webapp.runs.contexts.results.parts import Fault, Figure, Part, Reason, RunResults, count_of, prefixed
from webapp.runs.models.runs import Run
from webapp.runs.selectors import results as reads

MOST_FAULTS = 20
_EXCLUDED = {
    "language": "another language", "repository": "another repository", "ungradable": "cannot be graded here",
    "statement:short": "statement too short", "statement:long": "statement too long",
    "statement:leaks": "statement quotes the fix",
    "decontamination:repository": "repository of the benchmark",
    "decontamination:instance": "task of the benchmark", "decontamination:commit": "commit of the benchmark",
    "decontamination:statement": "statement like one of the benchmark",
    "decontamination:fix": "fix like one of the benchmark",
}  # fmt: skip


def curation(run: Run, made: Dataset | None) -> RunResults:
    """Return the funnel from commits or faults to tasks, as last reported."""
    funnel = build_funnel(run.funnel)
    wanted = sum(int(run.config["curation"][name]) for name in ("train_tasks", "heldout_tasks"))
    return RunResults(
        title=f"From {funnel.items if funnel else 'candidates'} to tasks",
        figures=(
            Figure(
                label="Tasks", value=funnel.tasks if funnel else None, sub=f"at most {count(wanted)} wanted"
            ),
            Figure(
                label="Time per task",
                value=funnel.seconds if funnel else None,
                form="seconds",
                sub="trials of all candidates",
            ),
            Figure(
                label="Disk per task",
                value=funnel.disk_bytes if funnel else None,
                form="bytes",
                sub="images and environments",
            ),
        ),
        funnel=funnel,
        links=_dataset_links(made),
    )


def hardening(run: Run, made: Dataset | None) -> RunResults:
    """Return hardened and unchanged tasks, and the wrong patches that the old and the new tests reject."""
    summary = run.summary
    tasks, hardened = count_of(summary, "tasks"), count_of(summary, "hardened")
    labels = {
        "tests_added": "Additional tests", "wrong_patches": "Wrong patches",
        "rejected_before": "Rejected before", "rejected_after": "Rejected after",
    }  # fmt: skip
    figures = [(label, count_of(summary, name)) for name, label in labels.items()]
    return RunResults(
        title="Tasks",
        about="a weak task is hardened by tests that its solution passes and a wrong patch fails",
        figures=tuple(Figure(label=label, value=number) for label, number in figures if number is not None),
        parts=(
            Part(label="hardened", css="passed", amount=hardened),
            Part(label="unchanged", css="zero", amount=tasks - hardened),
        )
        if tasks is not None and hardened is not None
        else (),
        funnel=build_funnel(run.funnel),
        links=_dataset_links(made),
    )


def importation(run: Run, made: Dataset | None) -> RunResults:
    """Return the rows of the source by fate, with reasons for those that are not in the dataset."""
    summary = run.summary
    left_out = reverse("dataset-left-out", args=[made.name]) if made is not None else ""

    def address(kind: str) -> str:
        return f"{left_out}?{urlencode({'kind': kind})}" if left_out else ""

    read, taken, refused, duplicates, excluded = (
        count_of(summary, name) for name in ("read", "imported", "rejected", "duplicates", "excluded")
    )
    ungradable = count_of(summary, "ungradable")
    if read is None:
        return RunResults(title="Rows of the source")
    return RunResults(
        title="Rows of the source",
        figures=(
            Figure(label="Rows imported", value=taken, of=read),
            Figure(label="Rejected", value=refused, sub="could not be converted"),
            Figure(label="Tasks of the dataset", value=count_of(summary, "tasks"),
                   sub=f"{ungradable} cannot be graded here" if ungradable else ""),
        ),
        parts=(
            Part(label="imported", css="passed", amount=taken or 0),
            Part(label="rejected", css="failed", amount=refused or 0, url=address("rejects")),
            Part(label="excluded by a filter", css="masked", amount=excluded or 0, url=address("excluded")),
            Part(label="duplicates", css="zero", amount=duplicates or 0),
        ),
        reasons=(
            *(
                Reason(label=f"rejected: field {field}" if field else "rejected: whole row", amount=number,
                       url=address("rejects"))
                for field, number in prefixed(summary, "rejected_")
            ),
            *(
                Reason(label=f"excluded: {in_words(name, _EXCLUDED)}", amount=number, url=address("excluded"))
                for name, number in prefixed(summary, "excluded_")
            ),
        ),
        links=_dataset_links(made),
    )  # fmt: skip


def _dataset_links(made: Dataset | None) -> tuple[tuple[str, str], ...]:
    if made is None:
        return ()
    return (
        (f"tasks of {made.name}", reverse("dataset-detail", args=[made.name])),
        ("health", reverse("dataset-health", args=[made.name])),
    )


def validation(run: Run) -> RunResults:
    """Return the validated rows by status, and those that do not hold with the reason."""
    counts = reads.validation_counts(run)
    done = sum(counts.values())
    valid = counts.get(RowStatus.VALID.value, 0)
    faults = reads.validation_faults(run, MOST_FAULTS)
    total = count_of(run.summary, "rows") or run.progress_total or None
    quarantined = count_of(run.summary, "quarantined")
    left = max(0, (total or 0) - done) if run.state in (RunState.RUNNING, RunState.PAUSED) else 0
    return RunResults(
        title="Row validation",
        about="a row is valid if its tests always fail untouched and pass with its gold patch",
        figures=(
            Figure(label="Valid rows", value=valid if done else None, of=done or None),
            Figure(label="Quarantined", value=quarantined),
            *_test_figures(run),
        ),
        parts=(
            *(
                Part(label=LOOKS[status][2], css=LOOKS[status][0], amount=counts[status])
                for status in LOOKS
                if counts.get(status)
            ),
            *([Part(label="remaining", css="open", amount=left)] if left else []),
        ),
        faults=tuple(_fault(row) for row in faults),
        num_faults=done - valid,
        links=((f"health of {run.dataset.name}", reverse("dataset-health", args=[run.dataset.name])),)
        if run.dataset is not None
        else (),
    )


def _test_figures(run: Run) -> tuple[Figure, ...]:
    names = ("tests_value", "tests_changed", "tests_added", "tests_without_mutant")
    counts = [count_of(run.summary, name) for name in names]
    known = [count for count in counts if count is not None]
    if len(known) < len(names) or not sum(known):
        return ()
    return (Figure(label="Mutated tests", value=sum(known[:-1]), of=sum(known), sub="of valid rows"),)


def _fault(row: Validation) -> Fault:
    task = row.task
    css, _, label = LOOKS[row.status]
    return Fault(
        name=task.instance_id,
        url=reverse("task-detail", args=[task.dataset.name, task.key]),
        status=label,
        css=css,
        reason=row.reason[:500],
    )
