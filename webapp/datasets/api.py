"""Datasets and tasks; answers only for callers who may see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, role_of_caller, viewer
from webapp.core.services import audit
from webapp.datasets.models.datasets import Dataset, Task, TaskAnswer
from webapp.datasets.selectors import datasets as reads
from webapp.datasets.selectors import difficulty, health
from webapp.datasets.selectors import imports as import_reads
from webapp.datasets.selectors.disk import KeptFile, State, kept_files
from webapp.datasets.services import datasets as writes
from webapp.datasets.services import quarantine
from webapp.datasets.services.disk import remove_unused
from webapp.runs.api.runs import RunOut
from webapp.runs.models.runs import Run
from webapp.runs.services import dataset_runs
from webapp.supervisor.engine_process import EngineFailedError

router = Router(tags=["datasets"])


class DatasetOut(Schema):
    """A dataset."""

    name: str
    num_tasks: int
    splits: dict[str, int]
    provenance: dict[str, Any]
    run_id: int | None
    synced_at: datetime | None


class TaskOut(Schema):
    """A task without its answer."""

    key: str
    instance_id: str
    split: str
    repo: str
    base_commit: str
    problem_statement: str
    image: str
    difficulty: dict[str, float]
    health: str
    """Status of the newest validation; empty if the task was never validated."""
    quarantined: bool
    quarantine_reason: str
    strength: float | None
    """Share of wrong patches that the tests rejected; null if never measured."""


class KeptFileOut(Schema):
    """A folder that curations keep in the data folder."""

    kind: str
    """``image``, ``toolchain``, ``clone`` of a repository, or ``leftover`` of a killed process."""
    path: str
    """Relative to the data folder."""
    bytes: int
    state: State
    """``used`` by a dataset, less than a day old (``recent``), or ``unused``."""


class AnswerOut(Schema):
    """Hidden part of a task, used by the grader only."""

    gold_patch: str
    fail_to_pass: list[str]
    pass_to_pass: list[str]
    test_command: str
    test_files: dict[str, str]
    binary_files: dict[str, str]
    """Path → content in base64."""
    grade_rule: str
    log_parser: str
    expected: dict[str, str]
    hidden_paths: list[str]
    timeout_s: float | None
    setup_patch: str
    deterministic: bool
    own_box: bool


class TaskDetail(TaskOut):
    """A task with its answer; ``answer`` is null for callers who may not see it."""

    metadata: dict[str, Any]
    answer: AnswerOut | None = None


class SideOut(Schema):
    """Results of repeated gradings of one patch."""

    outcome: str
    verdicts: list[str]
    seconds: list[float]
    detail: str


class CoverageOut(Schema):
    """Numbers of tests that solutions fix, by their best proven mutant."""

    value: int = 0
    """Tests with another expected value."""
    changed: int
    """Tests whose best mutant has a changed condition."""
    added: int
    """Tests whose only mutant has an added false assertion."""
    none: int
    """Tests without a mutant."""


class TaskCoverageOut(CoverageOut):
    """Numbers of tests that a task's solution fixes, by their best proven mutant."""

    variants: int
    """Number of alternative sets of mutated tests."""
    note: str
    """Reason for the absence of mutated tests; empty if there are any."""


class DatasetCoverageOut(CoverageOut):
    """Numbers of tests that the solutions of a dataset fix, by their best proven mutant."""

    tasks: int
    """Number of tasks with a proof of mutated tests, failed or not."""
    tasks_without: int
    """Number of tasks that are never audited because none of their tests can be mutated."""
    tasks_failed: int
    """Number of tasks that are not audited because the proof of their mutated tests failed."""


class WrongPatchesOut(Schema):
    """Gradings of one kind of wrong patches."""

    graded: int
    rejected: int


class StrengthOut(Schema):
    """Gradings of wrong patches by a task's tests."""

    kinds: dict[str, WrongPatchesOut]
    passed: list[str]
    """Wrong patches that the tests did not reject; empty for callers who may not see answers."""


class ProofOut(Schema):
    """Result of the newest proof of a task's mutated tests."""

    time: datetime
    coverage: TaskCoverageOut | None
    problem: str
    """Reason why the proof failed; empty if it succeeded."""


class ValidationOut(Schema):
    """Result of one validation of a task."""

    time: datetime
    run_id: int | None
    run_label: str
    status: str
    reason: str
    repeats: int
    flaky_tests: list[str]
    num_flaky_tests: int
    coverage: TaskCoverageOut | None
    strength: StrengthOut | None
    sides: dict[str, SideOut]


class SolveRateOut(Schema):
    """Solve rate of a task over all graded rollouts, with its 95 % interval."""

    solved: int
    graded: int
    rate: float | None
    interval: tuple[float, float]
    kind: str


class TaskHealthOut(Schema):
    """Health of a task: validations, quarantine decisions and measured difficulty."""

    key: str
    instance_id: str
    health: str
    quarantined: bool
    quarantine_reason: str
    quarantine_by: str
    solve_rate: SolveRateOut
    proof: ProofOut | None
    validations: list[ValidationOut]


class DatasetStrengthOut(Schema):
    """Test strength of a dataset's tasks."""

    tasks: int
    mean: float
    counts: list[int]
    """Number of tasks per tenth of the share of rejected wrong patches."""


class HealthOut(Schema):
    """Health of a dataset: numbers of tasks by status and difficulty."""

    dataset: str
    num_tasks: int
    num_validated: int
    num_quarantined: int
    statuses: dict[str, int]
    """Number of tasks by status; ``unvalidated`` for tasks without one."""
    solved: dict[str, int]
    """Number of tasks by class of measured difficulty."""
    attempts: int
    mutants: DatasetCoverageOut | None
    strength: DatasetStrengthOut | None


class ValidationIn(Schema):
    """Settings of a validation."""

    repeats: int | None = None
    splits: list[str] = Field(default_factory=list)
    rows: str | None = None
    overrides: dict[str, Any] = Field(default_factory=dict)


class HardeningIn(Schema):
    """Settings of a hardening."""

    output: str
    """Name of the dataset to make."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Further settings by dotted name, e.g. ``curation.alternatives_of``."""


class ImportIn(Schema):
    """Settings of a dataset import."""

    format: str
    source: str
    """``hf:OWNER/NAME``, or a path below an import folder of the server."""
    name: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Further settings by dotted name, e.g. ``importing.limit``."""


class LeftOutPage(Schema):
    """One page of the rows that an import left out, and their total number."""

    total: int
    items: list[dict[str, Any]]


class DecisionIn(Schema):
    """Quarantine decision about a task, with its reason."""

    quarantined: bool
    reason: str


class TaskQuery(Schema):
    """Filters of a list of tasks, as on the page."""

    split: str = ""
    q: str = ""
    health: str = ""
    """Health filter: a status, ``unvalidated`` or ``quarantined``."""
    noop: str = ""
    gold: str = ""
    solved: Literal["", "none", "mixed", "all", "unmeasured"] = ""
    rate_min: float | None = None
    rate_max: float | None = None
    strength_min: float | None = None
    strength_max: float | None = None
    order: Literal["", "weakest"] = ""


class TaskPage(Schema):
    """One page of tasks, and their total number."""

    total: int
    items: list[TaskOut]


def find(name: str) -> Dataset:
    """Return the dataset. Raises a 404 error if it does not exist."""
    dataset = reads.get_dataset(name)
    if dataset is None:
        raise HttpError(404, f"there is no dataset '{name}'")
    return dataset


def find_task(name: str, key: str) -> Task:
    """Return the task. Raises a 404 error if it does not exist."""
    task = reads.get_task(find(name).name, key)
    if task is None:
        raise HttpError(404, f"dataset '{name}' has no task '{key}'")
    return task


@router.get("/datasets", auth=viewer, response=list[DatasetOut])
def list_datasets(request: HttpRequest) -> list[Dataset]:
    """List all datasets."""
    return reads.list_datasets()


@router.post("/imports", auth=operator, response={201: RunOut})
def import_dataset(request: HttpRequest, body: ImportIn) -> tuple[int, Run]:
    """Queue a run that imports a published dataset."""
    run = dataset_runs.launch_import(
        format=body.format,
        source=body.source,
        name=body.name,
        overrides=body.overrides,
        actor=caller(request),
    )
    return 201, run


@router.get("/disk", auth=operator, response=list[KeptFileOut])
def list_kept_files(request: HttpRequest) -> list[KeptFile]:
    """List the images, toolchains and repositories that curations keep, the largest first."""
    try:
        return kept_files()
    except EngineFailedError as error:
        raise HttpError(409, str(error)) from None


@router.post("/disk/remove", auth=operator, response=list[KeptFileOut])
def remove_files(request: HttpRequest) -> list[KeptFile]:
    """Remove what no dataset uses, while no run goes on; list what was removed."""
    try:
        return remove_unused(actor=caller(request))
    except EngineFailedError as error:
        raise HttpError(409, str(error)) from None


@router.get("/datasets/{name}/left-out", auth=viewer, response=LeftOutPage)
def list_left_out(
    request: HttpRequest, name: str, kind: Literal["rejects", "excluded"] = "rejects", page: int = 1
) -> dict[str, Any]:
    """List source rows that could not be read (``rejects``) or were filtered out (``excluded``)."""
    rows = import_reads.left_out(find(name), kind, number=page)
    return {"total": rows.total, "items": list(rows.rows)}


@router.get("/datasets/{name}/export", auth=operator)
def export_dataset(
    request: HttpRequest, name: str, format: writes.ExportFormat = "trainyard"
) -> StreamingHttpResponse:
    """Export the dataset with its answers as JSON lines, in an import format."""
    parts = writes.export_parts(name=find(name).name, form=format)
    audit.record(actor=caller(request), action="dataset.export", target=f"dataset {name}")
    response = StreamingHttpResponse(parts, content_type="application/x-ndjson")
    response["Content-Disposition"] = f'attachment; filename="{name}.jsonl"'
    return response


@router.get("/datasets/{name}", auth=viewer, response=DatasetOut)
def get_dataset(request: HttpRequest, name: str) -> Dataset:
    """Return a dataset."""
    return find(name)


@router.post("/datasets/{name}/sync", auth=operator, response=DatasetOut)
def sync_dataset(request: HttpRequest, name: str) -> Dataset:
    """Synchronise the database with the dataset's folder."""
    return writes.sync(name=name, actor=caller(request))


@router.get("/datasets/{name}/tasks", auth=viewer, response=TaskPage)
def list_tasks(
    request: HttpRequest, name: str, filters: Query[TaskQuery], page: int = 1, size: int = 50
) -> dict[str, Any]:
    """List the tasks of a dataset in its order."""
    wanted = reads.TaskFilters(**filters.dict())
    size = max(1, min(size, 200))
    tasks = reads.list_tasks(find(name), wanted, number=page, size=size, with_statements=True)
    return {"total": tasks.total, "items": list(tasks.rows)}


@router.get("/datasets/{name}/health", auth=viewer, response=HealthOut)
def get_health(request: HttpRequest, name: str) -> HealthOut:
    """Return the health of a dataset: validation results and measured difficulty."""
    dataset = find(name)
    counts = health.outcome_counts(dataset)
    statuses: dict[str, int] = {}
    for count in counts:
        status = count.health or reads.UNVALIDATED
        statuses[status] = statuses.get(status, 0) + count.tasks
    profile = difficulty.profile(dataset)
    mutants = health.mutant_counts(dataset)
    strength = health.strength_counts(dataset)
    return HealthOut(
        dataset=dataset.name,
        num_tasks=dataset.num_tasks,
        num_validated=sum(count.tasks for count in counts if count.health),
        num_quarantined=sum(count.tasks for count in counts if count.quarantined),
        statuses=statuses,
        solved=profile.classes,
        attempts=profile.attempts,
        mutants=DatasetCoverageOut.from_orm(mutants) if mutants is not None else None,
        strength=DatasetStrengthOut.from_orm(strength) if strength is not None else None,
    )


@router.post("/datasets/{name}/validate", auth=operator, response={201: RunOut})
def validate_dataset(request: HttpRequest, name: str, body: ValidationIn) -> tuple[int, Run]:
    """Queue a run that grades every row without a patch and with its gold patch."""
    run = dataset_runs.launch_validation(
        name=find(name).name,
        repeats=body.repeats,
        splits=body.splits,
        rows=body.rows,
        overrides=body.overrides,
        actor=caller(request),
    )
    return 201, run


@router.post("/datasets/{name}/harden", auth=operator, response={201: RunOut})
def harden_dataset(request: HttpRequest, name: str, body: HardeningIn) -> tuple[int, Run]:
    """Queue a run that makes a new version of the dataset, with additional tests for weak tasks."""
    run = dataset_runs.launch_hardening(
        name=find(name).name, output=body.output, overrides=body.overrides, actor=caller(request)
    )
    return 201, run


@router.get("/datasets/{name}/tasks/{key}/health", auth=viewer, response=TaskHealthOut)
def get_task_health(request: HttpRequest, name: str, key: str) -> dict[str, Any]:
    """Return a task's validations and quarantine decisions, newest first."""
    task = find_task(name, key)
    validations = health.validations_of(task)
    if not role_of_caller(request).sees_answers:
        for validation in validations:
            validation.strength = validation.strength and {**validation.strength, "passed": []}
    solve = difficulty.rates_of(task.dataset_id, [task.pk]).get(task.pk, difficulty.SolveRate())
    fields = ("key", "instance_id", "health", "quarantined", "quarantine_reason", "quarantine_by", "proof")
    return {
        **{field: getattr(task, field) for field in fields},
        "solve_rate": solve,
        "validations": validations,
    }


@router.post("/datasets/{name}/tasks/{key}/quarantine", auth=operator, response=TaskOut)
def decide(request: HttpRequest, name: str, key: str, body: DecisionIn) -> Task:
    """Quarantine a task or release it, regardless of its validation."""
    task = find_task(name, key)
    quarantine.decide(task=task, quarantined=body.quarantined, reason=body.reason, actor=caller(request))
    return task


@router.get("/datasets/{name}/tasks/{key}", auth=viewer, response=TaskDetail)
def get_task(request: HttpRequest, name: str, key: str) -> TaskDetail:
    """Return a task."""
    task = find_task(name, key)
    detail = TaskDetail.from_orm(_Visible(task))
    if role_of_caller(request).sees_answers:
        answer = TaskAnswer.objects.filter(pk=task.pk).first()
        detail.answer = AnswerOut.from_orm(answer) if answer is not None else None
    return detail


class _Visible:
    """View of a task without its answer, which prevents serialisation of the answer through a relation."""

    answer = None

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> object:
        return getattr(self._task, name)
