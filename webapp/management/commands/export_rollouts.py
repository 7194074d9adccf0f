"""``manage.py export_rollouts RUN --output FILE``: the table of rollouts that selection rules read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.management.commands._runs import find_run
from webapp.selectors import attempts, predictions


class Command(BaseCommand):
    """Export graded rollouts with their scores."""

    help = (
        "Write the graded rollouts of an evaluation or iteration as JSONL, one a line, for "
        "'python -m engine.verifiers.selection' and 'python -m engine.verifiers.execution_based'."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that select rollouts and the output file."""
        parser.add_argument("run_id", type=int)
        parser.add_argument("--output", type=Path, required=True, help="path of the JSONL file to write")
        parser.add_argument("--phase", default="", help="train or eval:NAME (default: the newest evaluation)")
        parser.add_argument("--iteration", type=int, help="iteration (default: the newest)")
        parser.add_argument("--verifier", type=int, help="verifier's run whose scores are written as p_yes")

    def handle(self, **options: Any) -> None:
        """Write the file and print counts as one line of JSON."""
        run = find_run(options["run_id"])
        choice = predictions.choose(run, phase=options["phase"], iteration=options["iteration"])
        if choice is None:
            raise CommandError(f"run {run.pk} has no such finished rollouts")
        rows = attempts.rollout_rows(
            run.pk, phase=choice.phase, iteration=choice.iteration, verifier=options["verifier"]
        )
        try:
            options["output"].write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {options['output']}: {error.strerror}") from None
        counts = {"run": run.pk, "phase": choice.phase, "iteration": choice.iteration, "rollouts": len(rows)}
        self.stdout.write(json.dumps(counts))
