"""Mirror of validation results and of quarantine decisions in Postgres.

The file ``validation.jsonl`` in a dataset's folder is authoritative and read by engines. The tables are
updated incrementally by ``task_validated`` events, and completely when the dataset is synchronised.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction

from engine.events import health
from engine.events.health import FAULTS, DecisionRecord, ProofRecord, Side, ValidationRecord
from webapp.core.services.cleaning import without_nul
from webapp.datasets.models.datasets import Dataset, Task
from webapp.datasets.models.health import Proof, QuarantineDecision, Validation
from webapp.rollouts.services.rows import moment
from webapp.runs.models.runs import Run

_BATCH = 1_000
_UPDATED = [
    field.name for field in Validation._meta.concrete_fields if field.name not in ("id", "task", "uid")
]


def dataset_folder(dataset: Dataset) -> Path:
    """Return the folder of a dataset's files; it may not exist."""
    return Path(settings.TRAINYARD_HOME) / "datasets" / dataset.name


def record(*, run: Run, records: Sequence[ValidationRecord]) -> None:
    """Store a run's validation results; results of tasks not mirrored yet are stored with the tasks.

    Events lack what tells the answers: the next synchronisation reads the whole file again.
    """
    dataset_id = run.dataset_id
    if dataset_id is None:
        name = run.config.get("dataset", {}).get("name", "")
        dataset_id = Dataset.objects.filter(name=name).values_list("pk", flat=True).first()
    if dataset_id is not None:
        store(dataset_id, records, [])
        Dataset.objects.filter(pk=dataset_id).exclude(health_checksum="").update(health_checksum="")


@transaction.atomic
def mirror(*, dataset: Dataset) -> None:
    """Update the tables from the dataset's ``validation.jsonl``; an unchanged file costs one hash.

    Raises DatasetError when it is malformed.
    """
    path = dataset_folder(dataset) / health.FILE
    checksum = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
    stored = Dataset.objects.select_for_update().values_list("health_checksum", flat=True).get(pk=dataset.pk)
    if checksum == stored:
        return
    records = health.read(path.parent)
    validations = [record for record in records if isinstance(record, ValidationRecord)]
    decisions = [record for record in records if isinstance(record, DecisionRecord)]
    store(
        dataset.pk,
        validations,
        decisions,
        proofs=[record for record in records if isinstance(record, ProofRecord)],
    )
    Dataset.objects.filter(pk=dataset.pk).update(health_checksum=checksum)


def refresh_standings(*, task_ids: Sequence[int]) -> None:
    """Recompute the health status of tasks from all results and decisions for their current content."""
    faults = sorted(status.value for status in FAULTS)
    ordered = sorted(task_ids)
    with transaction.atomic(), connection.cursor() as cursor:
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            # A fixed order prevents deadlocks between two runs on one dataset.
            cursor.execute("SELECT 1 FROM webapp_task WHERE id = ANY(%s) ORDER BY id FOR UPDATE", [batch])
            cursor.execute(_REFRESH, [faults, batch])


_NEWEST = (
    "LEFT JOIN LATERAL (SELECT * FROM {table} r WHERE r.task_id = x.id"
    " AND (x.content = '' OR r.content = x.content) ORDER BY r.time DESC, r.id DESC LIMIT 1) {name} ON TRUE "
)
_STRENGTH = (
    "LEFT JOIN LATERAL (SELECT (SELECT sum((k->>'rejected')::float) / nullif(sum((k->>'graded')::float), 0)"
    " FROM jsonb_path_query(r.strength, '$.kinds.*') k) AS strength FROM webapp_validation r"
    " WHERE r.task_id = x.id AND (x.content = '' OR r.content = x.content)"
    " AND jsonb_path_exists(r.strength, '$.kinds.*')"
    " ORDER BY r.time DESC, r.id DESC LIMIT 1) m ON TRUE "
)
_REFRESH = (
    "UPDATE webapp_task t SET validation_id = v.id, proof_id = p.id, health = coalesce(v.status, ''),"  # noqa: S608
    " quarantined = coalesce(d.quarantined, v.quarantine AND v.status = ANY(%s), FALSE),"
    " quarantine_reason = coalesce(d.reason, v.reason, ''), quarantine_by = coalesce(d.by, ''),"
    " quarantine_since = coalesce(d.time, v.time), strength = m.strength FROM webapp_task x "
    + _NEWEST.format(table="webapp_validation", name="v")
    + _NEWEST.format(table="webapp_quarantinedecision", name="d")
    + _NEWEST.format(table="webapp_proof", name="p")
    + _STRENGTH
    + "WHERE t.id = x.id AND x.id = ANY(%s)"
)
"""``engine.events.health.row_health`` in SQL."""


def store(
    dataset_id: int,
    validations: Sequence[ValidationRecord],
    decisions: Sequence[DecisionRecord],
    *,
    proofs: Sequence[ProofRecord] = (),
    actor: User | None = None,
) -> None:
    """Upsert records of a dataset's tasks and recompute those tasks' status; ``actor`` made the decisions."""
    keys = {record.task_id for record in validations} | {record.task_id for record in decisions}
    keys |= {record.task_id for record in proofs}
    tasks = dict(Task.objects.filter(dataset=dataset_id, key__in=keys).values_list("key", "pk"))
    runs = _known_runs({record.run_id for record in validations})
    # A repeated record replaces the earlier one: an upsert must not contain the same row twice.
    unique = {record.id: record for record in validations if record.task_id in tasks}
    Validation.objects.bulk_create(
        [_validation(tasks[record.task_id], record, runs) for record in unique.values()],
        batch_size=_BATCH,
        update_conflicts=True,
        unique_fields=["task", "uid"],
        update_fields=_UPDATED,
    )
    QuarantineDecision.objects.bulk_create(
        [
            QuarantineDecision(
                task_id=tasks[record.task_id], uid=record.id, content=record.content, actor=actor,
                time=moment(record.time), quarantined=record.quarantined, reason=record.reason, by=record.by,
            )
            for record in decisions
            if record.task_id in tasks
        ],
        batch_size=_BATCH,
        ignore_conflicts=True,
    )  # fmt: skip
    proofs = [*map(_proof_of, validations), *proofs]
    Proof.objects.bulk_create(
        [
            Proof(
                task_id=tasks[record.task_id], uid=record.id, content=record.content,
                time=moment(record.time), problem=without_nul(record.problem),
                coverage=record.coverage.model_dump(mode="json") if record.coverage is not None else None,
            )
            for record in proofs
            if record.task_id in tasks and (record.coverage is not None or record.problem)
        ],
        batch_size=_BATCH,
        ignore_conflicts=True,
    )  # fmt: skip
    refresh_standings(task_ids=list(tasks.values()))


def _proof_of(record: ValidationRecord) -> ProofRecord:
    """Return the proof made by a validation; without one its ``coverage`` is None."""
    return ProofRecord(
        id=record.id,
        task_id=record.task_id,
        content=record.content,
        time=record.time,
        coverage=record.coverage,
    )


def _known_runs(labels: set[str]) -> dict[str, int]:
    numbers = {int(label) for label in labels if label.isdecimal() and len(label) < 19}
    return {str(pk): pk for pk in Run.objects.filter(pk__in=numbers).values_list("pk", flat=True)}


def _validation(task_id: int, record: ValidationRecord, runs: dict[str, int]) -> Validation:
    return Validation(
        task_id=task_id, uid=record.id, content=record.content, run_id=runs.get(record.run_id),
        run_label=record.run_id, time=moment(record.time), status=record.status.value,
        noop=record.noop.outcome.value, gold=record.gold.outcome.value, repeats=record.repeats,
        noop_seconds=_mean_seconds(record.noop), gold_seconds=_mean_seconds(record.gold),
        flaky_tests=without_nul(record.flaky_tests), num_flaky_tests=record.num_flaky_tests,
        reason=without_nul(record.reason), quarantine=record.quarantine,
        coverage=record.coverage.model_dump(mode="json") if record.coverage is not None else None,
        strength=without_nul(record.strength.model_dump(mode="json")) if record.strength else None,
        sides=without_nul({side: getattr(record, side).model_dump(mode="json") for side in ("noop", "gold")}),
    )  # fmt: skip


def _mean_seconds(side: Side) -> float | None:
    graded = [seconds for seconds in side.seconds if seconds]  # a refused task was not graded
    return statistics.fmean(graded) if graded else None
