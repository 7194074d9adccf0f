"""``manage.py export_predictions RUN --output FILE``: export a run's patches for the official harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from webapp.core.services import audit
from webapp.evaluations.selectors import predictions
from webapp.management.commands._runs import find_run
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Export predictions."""

    help = "Write predictions.jsonl (and a run report) of a run's rollouts, one for each task."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that select rollouts and output files."""
        parser.add_argument("run_id", type=int)
        parser.add_argument(
            "--output", type=Path, required=True, help="path of the predictions.jsonl to write"
        )
        parser.add_argument("--report", type=Path, help="path of a run report (JSON) to write too")
        parser.add_argument("--phase", default="", help="train or eval:NAME (default: the newest evaluation)")
        parser.add_argument("--iteration", type=int, help="iteration (default: the newest)")
        parser.add_argument("--index", type=int, default=0, help="index of the rollout within its group")

    def handle(self, **options: Any) -> None:
        """Write the files and print counts as one line of JSON."""
        run = find_run(options["run_id"])
        choice = predictions.choose(
            run, phase=options["phase"], iteration=options["iteration"], index=options["index"]
        )
        if choice is None:
            raise CommandError(f"run {run.pk} has no such finished rollouts")
        found = predictions.predictions(run, choice)
        report = predictions.report(run, choice) if options["report"] else None
        counts: dict[str, Any] = {
            "run": run.pk,
            "phase": choice.phase,
            "iteration": choice.iteration,
            "predictions": len(found),
        }
        _write(options["output"], "".join(prediction.line() for prediction in found))
        if run.plays_answers:
            audit.record(actor=None, action="answers.export", run_id=run.pk, target="predictions")
        if report is not None:
            _write(options["report"], json.dumps(report, indent=4))
            counts["resolved"] = report["resolved_instances"]
        self.stdout.write(json.dumps(counts))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
