"""``manage.py export_submission RUN --output FOLDER``: a submission folder for SWE-bench/experiments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from engine.terminal import visible_line
from webapp.core.services import audit
from webapp.evaluations.contexts.submission import Submission, submission_of
from webapp.management.commands._points import add_point, find_point
from webapp.management.commands._terminal import TerminalCommand

_TEXTS = {
    "name": "name on the leaderboard (default: trainyard-run-N)",
    "authors": "names, separated by commas",
    "organizations": "names, separated by commas",
    "models": "names, separated by commas (default: the run's)",
    "site": "address of the system",
    "report": "address of the technical report",
    "rule": "rule that selects one attempt of each task (default: the attempt with the number --index)",
}
_NUMBERS = {
    "index": "number of the attempt that is submitted (default: 0)",
    "verifier": "verifier's run whose P(YES) the rule compares (default: the one with most scores)",
    "tests": "verifier's run whose passes of tests the rule compares (default: the one with most scores)",
}
_FLAGS = {
    "open_model": "the model's weights are public",
    "open_system": "the system's code is public",
    "confirmed": "the statements of the checklist are true",
}


class Command(TerminalCommand):
    """Export a submission and check it."""

    help = "Write predictions, metadata, README, results, logs and traces, and print what they lack."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that select and describe the submission."""
        add_point(parser)
        parser.add_argument("--output", type=Path, required=True, help="existing folder to write it into")
        for name, about in _TEXTS.items():
            parser.add_argument(f"--{name}", default="", help=about)
        for name, about in _NUMBERS.items():
            parser.add_argument(f"--{name}", type=int, help=about)
        for name, about in _FLAGS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=about)

    def handle(self, **options: Any) -> None:
        """Write the folder, which must not exist, and print one finding a line."""
        params = {name: options[name] for name in _TEXTS if options[name]}
        params |= {name: str(options[name]) for name in _NUMBERS if options[name] is not None}
        params |= {name: "on" for name in _FLAGS if options[name]}
        try:
            point = find_point(options)
            submission = submission_of(point, params)
            folder = options["output"] / submission.folder
            findings = _export(submission, folder)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"cannot write {folder}: {error.strerror}") from None
        audit.record(
            actor=None,
            action="submission.export",
            run_id=point.run.pk,
            target=f"{point.phase} {point.iteration}",
        )
        for finding in findings:
            self.stderr.write(visible_line(finding))
        self.stdout.write(f"wrote {folder}, {len(findings)} findings")


def _export(submission: Submission, folder: Path) -> list[str]:
    """Write the folder whole or not at all; return what it lacks."""
    files = submission.files()
    if folder.exists():
        raise CommandError(f"cannot write {folder}: it exists; remove it or choose another --name")
    with TemporaryDirectory(dir=folder.parent, prefix=".submission-") as temporary:
        partial = Path(temporary) / folder.name
        findings = submission.check(_written(partial, files))
        partial.rename(folder)
    return findings


def _written(folder: Path, files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Write files as they are read, and yield them."""
    for path, content in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        yield path, content
