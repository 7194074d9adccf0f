"""Commands about alerts: ``alert list|acknowledge``."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, Number, command_group, print_json
from webapp.rollouts.services import annotations as annotation_writes
from webapp.runs.api.alerts import AlertList, alert_list
from webapp.runs.selectors import alerts as reads

app = command_group("List and acknowledge alerts of runs.")
OfRun = Annotated[int | None, typer.Option("--run", help="Only alerts of this run.")]


@app.command("list")
def list_(run: OfRun = None, number: Number = 20, as_json: AsJson = False) -> None:
    """List alerts that nobody has acknowledged, newest first."""
    listed = alert_list(run, number)
    if as_json:
        print_json(AlertList.model_validate(listed).model_dump())
        return
    for kind in listed["kinds"]:
        print(
            visible_line(f"{kind.code}: {kind.num_alerts} in {kind.num_runs} run{'s' * (kind.num_runs != 1)}")
        )
    for alert in listed["items"]:
        alike = f" ×{alert.num_alike}" if alert.num_alike > 1 else ""
        parts = (
            f"alert {alert.pk}",
            f"run {alert.run_id}",
            alert.severity,
            f"{alert.code}{alike}",
            alert.message,
        )
        print(visible_line(" · ".join(parts)))
    print(f"{len(listed['items'])} of {listed['total']} kinds of open alerts")


@app.command()
def acknowledge(
    numbers: Annotated[list[int], typer.Argument(metavar="ALERT", help="Numbers of the alerts.")],
    run: OfRun = None,
    number: Number = 20,
    as_json: AsJson = False,
) -> None:
    """Acknowledge alerts, with the earlier ones of their run and code; then list the open ones."""
    for alert_id in numbers:
        alert = reads.get_alert(alert_id)
        if alert is None:
            raise CommandError(f"there is no alert {alert_id}")
        annotation_writes.acknowledge(alert=alert)
    list_(run=run, number=number, as_json=as_json)
