"""Import of foreign trajectories into a new run, by the same events as an engine's."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from engine.config.policies import ReplayPolicyConfig
from engine.config.rollout import DatasetConfig
from engine.config.run import RolloutRun
from engine.errors import DatasetError
from engine.reading import parse_json
from engine.types import RunKind, RunState
from webapp.core.services import audit
from webapp.core.streaming import batched
from webapp.datasets.models.datasets import Dataset
from webapp.datasets.services.datasets import store_tasks
from webapp.ingestion.services import ingest
from webapp.runs.models.runs import Run

_BATCH, _BATCH_BYTES = 1_000, 8 << 20


@transaction.atomic
def import_lines(*, file_name: str, lines: Iterable[bytes], actor: User | None = None) -> Run:
    """Store an importer's NDJSON: task rows (``{"task", "answer", "split"}``) and trajectory events.

    The created run is of kind ``rollout``, has the file's name and has succeeded; the tasks become a dataset
    of the same name.

    Raises:
        DatasetError: a dataset of the same name exists that was not imported; nothing was stored.
        MalformedError: a line is not an event; nothing was stored.
    """
    dataset = _dataset(file_name)
    run = _run(file_name, dataset, actor)
    with tempfile.TemporaryFile() as tasks, tempfile.TemporaryFile() as answers:
        events = _numbered(_split(lines, tasks, answers))
        for batch in batched(events, count=_BATCH, size=_BATCH_BYTES, size_of=len):
            ingest.store(run_id=run.pk, lines=ingest.parse_lines(batch))
        tasks.seek(0)
        answers.seek(0)
        store_tasks(
            dataset=dataset,
            tasks=map(json.loads, tasks),
            answers=map(json.loads, answers),
            provenance={"imported_from": file_name},
        )
    audit.record(actor=actor, action="trajectories.import", run_id=run.pk, target=file_name)
    run.refresh_from_db()
    return run


def _dataset(file_name: str) -> Dataset:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file_name).strip("-.")[:200] or "import"
    dataset, created = Dataset.objects.get_or_create(
        name=name, defaults={"provenance": {"imported_from": file_name}}
    )
    if not created and "imported_from" not in dataset.provenance:
        raise DatasetError(f"a dataset '{name}' exists already: rename the file to import it")
    return dataset


def _run(file_name: str, dataset: Dataset, actor: User | None) -> Run:
    config = RolloutRun(
        name=file_name[:200],
        dataset=DatasetConfig(name=dataset.name, split="imported"),
        policy=ReplayPolicyConfig(source=file_name),
    )
    return Run.objects.create(
        kind=RunKind.ROLLOUT.value,
        name=config.name,
        config=config.model_dump(mode="json"),
        dataset=dataset,
        created_by=actor,
        state=RunState.STARTING.value,
        starting_at=timezone.now(),
        epoch=1,
    )


def _split(lines: Iterable[bytes], tasks: IO[bytes], answers: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the events in order; write the rows of tasks and answers to the files, one per line."""
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise ingest.MalformedError(f"not JSON: {error}", number) from None
        if not isinstance(record, dict):
            raise ingest.MalformedError("not an object", number)
        if "task" in record:
            task = record["task"]
            visible = {**task, "split": record.get("split", "imported")}
            hidden = {**record.get("answer", {}), "id": task["id"]}
            tasks.write(json.dumps(visible).encode() + b"\n")
            answers.write(json.dumps(hidden).encode() + b"\n")
        else:
            yield record


def _numbered(events: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Yield the events between a start and an end event, numbered from 1."""
    time = timezone.now().timestamp()
    seq = 1
    start = {"type": "run_started", "host": "import", "pid": 0, "total_iterations": 0}
    yield _line(start, seq, time)
    for event in events:
        seq += 1
        time = event.get("time", time)
        yield _line(event, seq, time)
    yield _line({"type": "run_finished", "state": "succeeded"}, seq + 1, time)


def _line(event: dict[str, Any], seq: int, time: float) -> bytes:
    return json.dumps(event | {"seq": seq, "epoch": 1, "time": time}).encode()
