"""Commands about notifications: ``notification add|list|remove|test|log``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.accounts.cli import find_user
from webapp.core.cli import AsJson, CommandError, Number, command_group, print_json, print_result
from webapp.core.permissions import Role
from webapp.notifications import selectors as reads
from webapp.notifications.api import delivery_record, experiment_named, notification_record
from webapp.notifications.models import Notification
from webapp.notifications.services import delivery, notifications

app = command_group("Webhooks and e-mails about ended runs and alerts.")
Id = Annotated[int, typer.Argument(metavar="NOTIFICATION", help="Number of the notification.")]


@app.command()
def add(
    username: Annotated[str, typer.Argument(help="Name of the user whom it belongs to.")],
    kind: Annotated[Notification.Kind, typer.Argument(help="Way to send the messages.")],
    address: Annotated[
        str,
        typer.Argument(
            help="URL or e-mail address; - reads it from standard input, since a URL may be secret."
        ),
    ],
    experiment: Annotated[str | None, typer.Option(help="Only runs of this experiment.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Final state to report: succeeded, failed or stopped; may be repeated."),
    ] = None,
    alert: Annotated[
        list[str] | None,
        typer.Option(help="Code of an alert to report, * for all warnings and errors; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a notification; print the signing secret of a webhook, which is shown only now."""
    notification, secret = notifications.add(
        owner=find_user(username),
        kind=kind.value,
        address=sys.stdin.read() if address == "-" else address,
        experiment=experiment_named(experiment),
        states=state or (),
        alerts=alert or (),
    )
    record = notification_record(notification) | {"secret": secret}
    line = f"notification {notification.pk} was added"
    print_result(f"{line}; signing secret {secret}" if secret else line, record, as_json=as_json)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the notifications of all users."""
    records = [notification_record(row) for row in reads.visible(Role.ADMIN, None)]
    if as_json:
        print_json(records)
        return
    for record in records:
        events = ", ".join((*record["states"], *(f"alert {code}" for code in record["alerts"])))
        about = f"runs of {record['experiment']}" if record["experiment"] else "all runs"
        parts = (
            f"notification {record['id']}",
            record["owner"],
            record["kind"],
            record["address"],
            about,
            events,
        )
        print(visible_line(" · ".join(parts)))


@app.command()
def remove(number: Id, as_json: AsJson = False) -> None:
    """Remove a notification with its messages."""
    notifications.remove(notification=_find(number))
    print_result(f"notification {number} was removed", {"id": number}, as_json=as_json)


@app.command("test")
def send_test(number: Id, as_json: AsJson = False) -> None:
    """Send a test message now."""
    sent = delivery.send_test(notification=_find(number))
    record = delivery_record(sent)
    if as_json:
        print_json(record)
    if sent.state != "delivered":
        raise CommandError(visible_line(f"the message was not delivered: {_outcome(record)}"))
    if not as_json:
        print(visible_line(f"the message was delivered: {_outcome(record)}"))


@app.command()
def log(number: Id, most: Number = 20, as_json: AsJson = False) -> None:
    """List the newest messages of a notification."""
    rows = reads.visible(Role.ADMIN, None).filter(pk=_find(number).pk)
    records = [delivery_record(row) for row in reads.newest_deliveries(rows, limit=most)]
    if as_json:
        print_json(records)
        return
    for record in records:
        run = f"run {record['run_id']}" if record["run_id"] else "no run"
        attempts = f"{record['attempts']} attempts"
        parts = (f"{record['created_at']:%Y-%m-%d %H:%M:%S}", record["type"], run, record["state"], attempts)
        print(visible_line(" · ".join((*parts, _outcome(record)))))


def _outcome(record: dict[str, object]) -> str:
    status = f"status {record['status']}" if record["status"] else ""
    return ": ".join(filter(None, (status, str(record["detail"])))) or "no attempt yet"


def _find(number: int) -> Notification:
    notification = reads.find(number, Role.ADMIN, None)
    if notification is None:
        raise CommandError(f"there is no notification {number}; `trainyard notification list` lists them")
    return notification
