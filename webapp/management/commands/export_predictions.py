"""``manage.py export_predictions RUN --output FILE``: a run's patches for the official harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.management.commands._runs import find_run
from webapp.selectors import predictions


class Command(BaseCommand):
    """Export predictions."""

    help = "Write predictions.jsonl (and a run report) of a run's rollouts, one for each task."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which rollouts, and where to."""
        parser.add_argument("run_id", type=int)
        parser.add_argument("--output", type=Path, required=True, help="predictions.jsonl to write")
        parser.add_argument("--report", type=Path, help="run report (JSON) to write as well")
        parser.add_argument(
            "--phase", default="", help="train or eval:NAME; the newest evaluation by default"
        )
        parser.add_argument("--iteration", type=int, help="the newest by default")
        parser.add_argument("--index", type=int, default=0, help="which of a task's siblings")

    def handle(self, **options: Any) -> None:
        """End with one line of JSON counts."""
        run = find_run(options["run_id"])
        choice = predictions.choose(
            run, phase=options["phase"], iteration=options["iteration"], index=options["index"]
        )
        if choice is None:
            raise CommandError(f"run {run.pk} has no such finished rollouts")
        found = predictions.predictions(run, choice)
        options["output"].write_text("".join(prediction.line() for prediction in found), encoding="utf-8")
        counts: dict[str, Any] = {
            "run": run.pk,
            "phase": choice.phase,
            "iteration": choice.iteration,
            "predictions": len(found),
        }
        if options["report"]:
            report = predictions.report(run, choice)
            options["report"].write_text(json.dumps(report, indent=4), encoding="utf-8")
            counts["resolved"] = report["resolved_instances"]
        self.stdout.write(json.dumps(counts))
