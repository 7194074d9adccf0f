"""Manual quarantine decisions about tasks, which override validation."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from engine.errors import DatasetError
from engine.events.health import DecisionRecord, append
from webapp.core.services import audit
from webapp.datasets.models.datasets import Task
from webapp.datasets.services import datasets, health


@transaction.atomic
def decide(*, task: Task, quarantined: bool, reason: str, actor: User | None = None) -> None:
    """Quarantine a task or release it, regardless of its validation.

    Raises:
        DatasetError: no reason, the task was removed from its dataset, or the dataset has no folder.
    """
    reason = reason.strip()
    if not 0 < len(reason) <= 2000:
        raise DatasetError("say why, in at most 2000 characters")
    if not task.active:
        raise DatasetError(f"{task.instance_id} is no longer in the dataset '{task.dataset.name}'")
    folder = health.dataset_folder(task.dataset)
    if not (folder / "tasks.jsonl").exists():
        raise DatasetError(
            f"the dataset '{task.dataset.name}' has no folder here: nothing could be trained on it anyway"
        )
    if not task.content:
        datasets.sync(name=task.dataset.name, actor=actor)
        task.refresh_from_db()
    decision = DecisionRecord(
        id=uuid.uuid4().hex,
        task_id=task.key,
        content=task.content,
        time=timezone.now().timestamp(),
        quarantined=quarantined,
        reason=reason,
        by=actor.get_username() if actor is not None else "a command",
    )
    health.store(task.dataset_id, [], [decision], actor=actor)
    audit.record(
        actor=actor,
        action="task.quarantine" if quarantined else "task.release",
        target=f"task {task.instance_id} of dataset {task.dataset.name}",
        changes={"reason": reason},
    )
    # Last, because it cannot be undone: a failure before it changes neither file nor database.
    append(folder, [decision])
    task.refresh_from_db()
