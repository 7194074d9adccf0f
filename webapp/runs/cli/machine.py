"""Commands about the machine and the files of a run: ``run system|files``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, command_group, print_json, print_result
from webapp.runs.api.files import RunFilesOut
from webapp.runs.api.system import SystemOut
from webapp.runs.cli.describe import RunId, find_run
from webapp.runs.contexts.system import build_system
from webapp.runs.selectors.files import list_files, open_file, read_parts

app = command_group()


@app.command()
def system(run_id: RunId, as_json: AsJson = False) -> None:
    """Print a run's use of processor, memory, disk, GPUs, sandboxes and engines."""
    view = build_system(find_run(run_id))
    if as_json:
        print_json(SystemOut.model_validate(view, from_attributes=True).model_dump())
        return
    if not view.rows:
        print(f"run {run_id} has no report of its machine")
        return
    print(f"{'':34}{'newest':>10}{'mean':>10}{'highest':>10}  unit")
    for row in view.rows:
        label = f"{row.title}, {row.name}"
        numbers = "".join(f"{value:10.4g}" for value in (row.newest, row.mean, row.highest))
        print(visible_line(f"{label:34}{numbers}  {row.unit}"))


@app.command()
def files(
    run_id: RunId,
    name: Annotated[str, typer.Argument(help="Name of a file to copy; without one, all are listed.")] = "",
    output: Annotated[Path | None, typer.Option(help="Path of the copy.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the files of a run, or copy one; secrets are removed from logs."""
    run = find_run(run_id)
    if name:
        _copy(run.pk, name, output, as_json=as_json)
        return
    found = list_files(run.pk)
    if as_json:
        print_json(RunFilesOut.model_validate(found, from_attributes=True).model_dump())
        return
    for file in found.files:
        print(
            visible_line(
                f"{file.size:>14,}  {file.changed_at:%Y-%m-%d %H:%M:%S}  {file.kind:13}  {file.name}"
            )
        )
    print(f"{len(found.files)} of {found.total} files, {found.total_size:,} bytes")


def _copy(run_id: int, name: str, output: Path | None, *, as_json: bool) -> None:
    if output is None:
        raise CommandError("name the path of the copy with --output")
    opened = open_file(run_id, name)
    if opened is None:
        raise CommandError(f"run {run_id} has no file '{name}'; `trainyard run files {run_id}` lists them")
    try:
        with output.open("wb") as copy:
            copy.writelines(read_parts(*opened))
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from None
    print_result(f"{name} was copied to {output}", {"name": name, "output": str(output)}, as_json=as_json)
