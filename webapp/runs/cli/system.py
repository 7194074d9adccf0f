"""Commands about the machine and the files of a run: ``run system``."""

from __future__ import annotations

from engine.terminal import visible_line
from webapp.core.cli import AsJson, command_group, print_json
from webapp.runs.api.system import SystemOut
from webapp.runs.cli.describe import RunId, find_run
from webapp.runs.contexts.system import build_system

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
