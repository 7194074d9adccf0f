"""``manage.py quarantine DATASET TASK --reason WHY [--release]``: quarantine or release a task."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from engine.errors import TrainyardError
from engine.terminal import visible_line
from webapp.datasets.models.datasets import Task
from webapp.datasets.services import quarantine
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Quarantine or release a task."""

    help = "Quarantine a task (exclude it from training and evaluation) or release it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for dataset, task and reason."""
        parser.add_argument("dataset")
        parser.add_argument("task", help="key or instance id of the task")
        parser.add_argument("--reason", required=True, help="reason of the decision, visible to every user")
        parser.add_argument("--release", action="store_true", help="release the task from quarantine")

    def handle(self, **options: Any) -> None:
        """Store the decision and print the task's status."""
        named = Q(key=options["task"]) | Q(instance_id=options["task"])
        task = Task.objects.filter(named, dataset__name=options["dataset"], active=True).first()
        if task is None:
            raise CommandError(f"the dataset '{options['dataset']}' has no task '{options['task']}'")
        try:
            quarantine.decide(task=task, quarantined=not options["release"], reason=options["reason"])
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        state = "in quarantine" if task.quarantined else "not in quarantine"
        self.stdout.write(visible_line(f"{task.instance_id} is {state}: {task.quarantine_reason}"))
