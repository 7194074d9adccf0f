"""Import of a published dataset: read, convert, select, write; streaming, idempotent, resumable.

    source ─▶ rows ─▶ convert ─▶ decontaminate, filter ─▶ staging folder ─▶ dataset folder, in one step

Malformed rows are recorded with number and field in ``rejects.jsonl`` beside the dataset, filtered rows in
``excluded.jsonl``. Ids are content hashes, so that the same source yields the same ids; a row that exists
already is a duplicate. At most one batch of rows is in memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.build_contexts import NOT_PULLED, store_context
from engine.config.importing import ImportConfig
from engine.datasets.answer_files import contents_of
from engine.datasets.importers.base import Format, Imported
from engine.datasets.importers.decontamination import Decontamination
from engine.datasets.importers.fields import unwrap_row
from engine.datasets.importers.filters import Exclusion, Filters
from engine.datasets.importers.hub import fetch
from engine.datasets.importers.reading import Item, Source, count_rows, read_items
from engine.datasets.importers.records import COUNTED, existing_header, fingerprint_of, provenance_of
from engine.datasets.importers.registry import FORMATS
from engine.datasets.importers.rejects import FIRST_REJECTS, check_text, describe_rejects, reject_record
from engine.datasets.importers.staging import EXCLUDED, REJECTS, ImportProgress, Staging
from engine.datasets.store import with_content_id
from engine.errors import DatasetError, TrainyardError
from engine.types import TaskRow

COMMIT_ROWS = 500
COMMIT_S = 2.0
_LONGEST = {"instance_id": 300, "repo": 300, "base_commit": 100, "image": 500, "workdir": 300, "split": 64}
"""Maximum length of a task's fields in the tables, characters."""
_LONGEST_TEST_S = 86_400.0
_REASONS, _REASON_CHARS = 5, 300
Report = Callable[[str, int, int], None]
"""Progress callback: message, rows done, total rows (0: unknown)."""
Gradable = Callable[[TaskRow], str]
"""Callback that returns the reason why a row cannot be graded, or an empty text; passed in, because
grading is a higher layer."""


class ImportStopped(TrainyardError):
    """A stop was requested; completed rows are kept, and the next identical import resumes there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """Counts of a finished import."""

    dataset: str
    read: int
    """Rows read from the source."""
    imported: int
    """Rows in the dataset that come from this import."""
    rejected: int
    duplicates: int
    excluded: int
    ungradable: int
    """Imported rows that cannot be graded on this installation."""
    tasks: int
    """Rows of the dataset in total."""
    seconds: float
    resumed: bool
    excluded_by: Mapping[str, int] = field(default_factory=dict)
    rejected_by: Mapping[str, int] = field(default_factory=dict)
    """Invalid field → number of rejected rows; the empty key counts rows that are invalid as a whole."""
    ungradable_by: Mapping[str, int] = field(default_factory=dict)
    """Reason why patches cannot be graded → number of rows; the first reasons that occurred."""
    first_rejects: Sequence[Mapping[str, Any]] = ()
    """The first rejected rows: row, file, line, field, reason."""

    def counts(self) -> dict[str, Any]:
        """Return the counts as plain JSON data."""
        names = ("dataset", "read", "imported", "rejected", "duplicates", "excluded", "ungradable", "tasks")
        counts: dict[str, Any] = {name: getattr(self, name) for name in names}
        return {
            **counts,
            "excluded_by": dict(self.excluded_by),
            "rejected_by": dict(self.rejected_by),
            "ungradable_by": dict(self.ungradable_by),
            "first_rejects": [dict(record) for record in self.first_rejects],
            "seconds": self.seconds,
            "resumed": self.resumed,
        }


def import_dataset(
    config: ImportConfig,
    *,
    home: Path,
    gradable: Gradable | None = None,
    report: Report | None = None,
    must_end: Callable[[], bool] = lambda: False,
) -> ImportResult:
    """Import a published dataset.

    Args:
        config: source, target dataset, and selection of rows.
        home: the data folder.
        gradable: called for every row; a row that cannot be graded is imported, counted and marked.
        report: called with the progress.
        must_end: polled between rows; True stops the import.

    Raises:
        DatasetError: nothing can be imported: no rows, or the dataset belongs to another source.
        PreflightError: a library is missing, or the hub cannot be reached.
        ImportStopped: ``must_end`` returned True; nothing is visible yet and nothing is lost.
    """
    started = time.monotonic()
    report = report or _silence
    form = FORMATS[config.format]
    source = _fetched(config, home, report)
    existing = existing_header(config, home)
    fingerprint = fingerprint_of(config, source, form, existing)
    with Staging(home, config.output, fingerprint) as staging:
        resumed = staging.resumed
        work = _Import(config, form, source, staging, _decontamination(config), gradable, home)
        if not resumed and config.mode == "append" and existing is not None:
            staging.seed()
        work.run(report, must_end)
        counts = staging.progress.counts
        if not staging.progress.splits:
            staging.discard()
            raise DatasetError(_nothing_left(config, staging.progress))
        references = work.decontamination.num_references
        provenance = provenance_of(config, source, work.progress, references, existing)
        report("writing the dataset", counts.get("read", 0), counts.get("read", 0))
        staging.publish(provenance)
        return ImportResult(
            dataset=config.output,
            **{name: counts.get(name, 0) for name in COUNTED},
            tasks=sum(staging.progress.splits.values()),
            seconds=round(time.monotonic() - started, 1),
            resumed=resumed,
            excluded_by=dict(sorted(staging.progress.excluded_by.items())),
            rejected_by=dict(sorted(staging.progress.rejected_by.items())),
            ungradable_by=dict(staging.progress.ungradable_by),
            first_rejects=staging.progress.first_rejects,
        )


def _count_reason(counts: dict[str, int], reason: str) -> None:
    """Count a reason; reasons beyond the first few are counted together."""
    reason = reason[:_REASON_CHARS]
    key = reason if reason in counts or len(counts) < _REASONS else "other reasons"
    counts[key] = counts.get(key, 0) + 1


def _silence(message: str, done: int, total: int) -> None:
    """Ignore progress reports."""


class _Import:
    """One pass over the source."""

    def __init__(
        self,
        config: ImportConfig,
        form: Format,
        source: Source,
        staging: Staging,
        decontamination: Decontamination,
        gradable: Gradable | None,
        home: Path,
    ) -> None:
        self._config = config
        self._home = home
        self._form = form
        self._source = source
        self._staging = staging
        self._filters = Filters(config.filters)
        self._gradable = gradable
        self.decontamination = decontamination
        self.progress = staging.progress
        self._ids: set[str] = set()
        self._instances: dict[str, int] = {}

    def run(self, report: Report, must_end: Callable[[], bool]) -> None:
        """Process every remaining row. Raises ImportStopped."""
        for number, task in enumerate(self._staging.tasks()):
            self._ids.add(task["id"])
            self._instances[task["instance_id"]] = number
        progress = self._staging.progress
        total = count_rows(self._source, self._form, split=self._config.source_split)
        if self._config.limit:
            total = min(total, self._config.limit) or self._config.limit
        committed = time.monotonic()
        for item in self._items(progress.next_row):
            if must_end():
                self._staging.commit(item.number)
                raise ImportStopped("the import was stopped; repeat the same import to resume it")
            self._take(item)
            due = (item.number + 1) % COMMIT_ROWS == 0 or time.monotonic() - committed > COMMIT_S
            if due:
                self._staging.commit(item.number + 1)
                committed = time.monotonic()
                report(f"importing {self._config.output}", item.number + 1, total)
        self._staging.commit(progress.counts.get("read", 0))

    def _items(self, start: int) -> Iterator[Item]:
        items = read_items(self._source, self._form, split=self._config.source_split, start=start)
        with closing(items):  # type: ignore[type-var]  # it is a generator
            for item in items:
                if self._config.limit and item.number >= self._config.limit:
                    return
                yield item

    def _take(self, item: Item) -> None:
        progress = self._staging.progress
        progress.count("read")
        try:
            imported, row = self._converted(item)
        except DatasetError as error:
            self._reject(item, error.field or "", str(error))
            return
        excluded = self.decontamination.check(imported) or self._filters.check(imported)
        if excluded is not None:
            self._exclude(item, imported, excluded)
            return
        if row.task.id in self._ids:
            progress.count("duplicates")
            return
        known = self._instances.get(row.task.instance_id)
        if known is not None:
            message = f"'{row.task.instance_id}' is already the id of task {known}, which has other content"
            self._reject(item, "instance_id", message)
            return
        self._instances[row.task.instance_id] = len(self._ids)
        self._ids.add(row.task.id)
        if imported.context:
            store_context(self._home, imported.context)
        self._staging.add(row)
        progress.count("imported")
        if imported.ungradable:
            progress.count("ungradable")
            _count_reason(progress.ungradable_by, imported.ungradable)

    def _converted(self, item: Item) -> tuple[Imported, TaskRow]:
        if item.error:
            raise DatasetError(item.error)
        try:
            return self._gradable_row(self._form.convert(unwrap_row(item.row)), item)
        except DatasetError:
            raise
        except Exception as error:
            # An unforeseen malformed row must not fail the whole import.
            raise DatasetError(f"cannot be converted: {type(error).__name__}: {str(error)[:200]}") from error

    def _gradable_row(self, imported: Imported, item: Item) -> tuple[Imported, TaskRow]:
        row = self._row(imported, item)
        if not imported.ungradable and self._gradable is not None:
            imported = replace(imported, ungradable=self._gradable(row))
        return imported, self._row(imported, item) if imported.ungradable else row

    def _row(self, imported: Imported, item: Item) -> TaskRow:
        task, answer = imported.task, imported.answer
        if self._config.image_prefix and task.image and not task.image.startswith(NOT_PULLED):
            task = replace(task, image=f"{self._config.image_prefix.rstrip('/')}/{task.image}")
        if imported.ungradable:
            answer = replace(answer, metadata={**answer.metadata, "ungradable": imported.ungradable})
        split = self._config.split or imported.split or item.split or "train"
        for name, limit in _LONGEST.items():
            value = split if name == "split" else getattr(task, name)
            if len(value) > limit:
                raise DatasetError(f"longer than {limit} characters", field=name)
            if "\0" in value:
                raise DatasetError("contains NUL, which command lines cannot", field=name)
        if answer.timeout_s is not None and not 0 < answer.timeout_s <= _LONGEST_TEST_S:
            raise DatasetError(f"not above 0 and up to {_LONGEST_TEST_S:g} seconds", field="timeout_s")
        if not all(map(math.isfinite, task.difficulty.values())):
            raise DatasetError("no finite number", field="difficulty")
        check_text(task)
        check_text(answer)
        contents_of(answer)
        return with_content_id(TaskRow(task=task, answer=answer, split=split))

    def _reject(self, item: Item, where: str, reason: str) -> None:
        progress = self._staging.progress
        progress.count("rejected")
        progress.rejected_by[where] = progress.rejected_by.get(where, 0) + 1
        record = reject_record(item, where, reason)
        self._staging.note(REJECTS, record)
        if len(progress.first_rejects) < FIRST_REJECTS:
            progress.first_rejects.append(record)

    def _exclude(self, item: Item, imported: Imported, excluded: Exclusion) -> None:
        progress = self._staging.progress
        progress.count("excluded")
        progress.excluded_by[excluded.by] = progress.excluded_by.get(excluded.by, 0) + 1
        name = imported.task.instance_id
        record = {"row": item.number, "instance_id": name, "by": excluded.by, "detail": excluded.detail[:500]}
        self._staging.note(EXCLUDED, record)


def _fetched(config: ImportConfig, home: Path, report: Report) -> Source:
    if not config.hub_name:
        folder = Path(config.source).expanduser().resolve()
        if not folder.exists():
            raise DatasetError(f"there is no file or folder {config.source}")
        return Source(path=folder)
    return fetch(
        config.hub_name,
        home=home,
        revision=config.revision,
        subset=config.subset,
        split=config.source_split,
        whole=FORMATS[config.format].read_folder is not None,
        report=lambda message: report(message, 0, 0),
    )


def _decontamination(config: ImportConfig) -> Decontamination:
    """Index the benchmark to decontaminate against. Raises DatasetError when its file has no rows."""
    reference = config.decontamination.reference
    if not reference:
        return Decontamination(config.decontamination)
    rows = []
    convert = FORMATS["swe-bench"].convert
    for item in read_items(Source(path=Path(reference).expanduser()), FORMATS["swe-bench"]):
        try:
            if item.error:
                raise DatasetError(item.error)
            rows.append(convert(unwrap_row(item.row)))
        except DatasetError as error:
            raise DatasetError(
                f"decontamination.reference: {error}", row=item.number, field=error.field
            ) from None
    if not rows:
        raise DatasetError(f"decontamination.reference: no rows in {reference}")
    return Decontamination(config.decontamination, rows)


def _nothing_left(config: ImportConfig, progress: ImportProgress) -> str:
    read, rejected, excluded = (progress.counts.get(name, 0) for name in ("read", "rejected", "excluded"))
    message = f"no row of {config.source} was imported: {read} read, {rejected} rejected, {excluded} excluded"
    first = describe_rejects(progress.first_rejects[:1])
    return f"{message}; the first: {first} (is the format '{config.format}' right?)" if first else message
