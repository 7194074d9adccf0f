"""``manage.py quarantine DATASET TASK --reason WHY [--release]``: decide about one task by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q

from engine.errors import TrainyardError
from webapp.models import Task
from webapp.services import quarantine


class Command(BaseCommand):
    """Quarantine or release a task."""

    help = "Keep a task out of training and evaluation, or let it in again, whatever validation says."

    def add_arguments(self, parser: CommandParser) -> None:
        """Dataset, task, reason."""
        parser.add_argument("dataset")
        parser.add_argument("task", help="its key or its instance id")
        parser.add_argument("--reason", required=True, help="why; everybody can read it")
        parser.add_argument("--release", action="store_true", help="take it out of quarantine")

    def handle(self, **options: Any) -> None:
        """Print where the task stands now."""
        named = Q(key=options["task"]) | Q(instance_id=options["task"])
        task = Task.objects.filter(named, dataset__name=options["dataset"], active=True).first()
        if task is None:
            raise CommandError(f"the dataset '{options['dataset']}' has no task '{options['task']}'")
        try:
            quarantine.decide(task=task, quarantined=not options["release"], reason=options["reason"])
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        state = "in quarantine" if task.quarantined else "not in quarantine"
        self.stdout.write(f"{task.instance_id} is {state}: {task.quarantine_reason}")
