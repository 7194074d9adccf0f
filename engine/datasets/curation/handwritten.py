"""Hand-written tasks that ship with the engine, beside the injected faults.

Each is a JSON file in ``handwritten/``: a SWE-rebench row plus ``source`` (origin of the tree at the base
commit) and ``requirements``. To add one, add a file whose licence allows it.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine.datasets.curation.baseline import ensure_image
from engine.datasets.curation.toolchain import ensure_toolchain
from engine.datasets.importers.formats.swe_row import read_row
from engine.datasets.sources.fetch import Source, fetch_source
from engine.datasets.store import with_content_id
from engine.errors import DatasetError, PatchError
from engine.patches.apply import apply_patch
from engine.patches.sections import split_patch
from engine.patches.trees import FileState
from engine.testing.testrun import driver_command
from engine.types import TaskRow

_FOLDER = Path(__file__).parent / "handwritten"


def names() -> tuple[str, ...]:
    """Return the names of the available tasks."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def build_task(name: str, home: Path) -> TaskRow:
    """Fetch the task's source, build its image and return its row, in split ``handwritten``.

    Raises:
        DatasetError: there is no such task, or its patches do not fit its source.
        PreflightError: its source cannot be fetched.
    """
    if name not in names():
        raise DatasetError(f"there is no hand-written task '{name}'; there are: {', '.join(names())}")
    shipped = json.loads((_FOLDER / f"{name}.json").read_text())
    row = read_row(shipped, number=0)
    source = fetch_source(shipped["source"], home)
    toolchain = ensure_toolchain(home, shipped["requirements"])
    image = ensure_image(source, toolchain, home)
    _patched(source, row.code_patch, name)
    test_files = _patched(source, row.test_patch, name)
    files = sorted({test.partition("::")[0] for test in row.fail_to_pass + row.pass_to_pass})
    answer = row.answer(
        gold_patch=row.code_patch,
        test_files=test_files,
        test_command=driver_command(files, source.roots),
        deterministic=False,
    )
    task = row.task(image=f"local:{image}", metadata={"source": source.spec})
    return with_content_id(TaskRow(task=task, answer=answer, split="handwritten"))


def _patched(source: Source, patch: str, name: str) -> dict[str, str]:
    """Return path → content after a patch. Raises DatasetError if the patch does not apply."""
    before: dict[str, FileState] = {}
    for part in split_patch(patch):
        for path in part.paths:
            file = source.tree / path
            if file.is_file():
                before[path] = FileState(0o100644, file.read_bytes())
    try:
        changed, _ = apply_patch(before, patch)
    except PatchError as error:
        raise DatasetError(f"hand-written task '{name}' does not fit {source.spec}: {error}") from error
    return {path: state.data.decode() for path, state in changed.items()}
