"""``manage.py export_rollouts RUN --output FILE``: the table of rollouts that selection rules read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import ConfigError
from webapp.management.commands._points import add_point, described, find_point
from webapp.management.commands._terminal import TerminalCommand
from webapp.rollouts.selectors import attempts


class Command(TerminalCommand):
    """Export graded rollouts with their scores."""

    help = (
        "Write the graded rollouts of an evaluation or iteration as JSONL, one a line, for "
        "'python -m engine.verifiers.selection' and 'python -m engine.verifiers.execution_based'."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that select rollouts and the output file."""
        add_point(parser)
        parser.add_argument("--output", type=Path, required=True, help="path of the JSONL file to write")
        parser.add_argument("--verifier", type=int, help="verifier's run whose scores are written as p_yes")
        parser.add_argument("--tests", type=int, help="verifier's run whose passes of tests are written")

    def handle(self, **options: Any) -> None:
        """Write the file and print counts as one line of JSON."""
        point = find_point(options)
        try:
            rows = attempts.rollout_rows(point, verifier=options["verifier"], tests=options["tests"])
        except ConfigError as error:
            raise CommandError(str(error)) from None
        try:
            options["output"].write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {options['output']}: {error.strerror}") from None
        self.stdout.write(json.dumps({**described(point), "rollouts": len(rows)}))
