"""Deletion of archived runs by page, API, command and worker."""

from __future__ import annotations

import pytest
from django.db import connection
from django.utils import timezone

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import hand_over, launched, signed_in, snapshot
from webapp.core.permissions import Role
from webapp.models import AuditEntry, Event, Run, Step, Trajectory
from webapp.rollouts.services import removal
from webapp.runs.services import deletion, edits
from workers import reconciler
from workers.app import delete_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def yard(monkeypatch: pytest.MonkeyPatch) -> Yard:
    """Create an archived run that takes several transactions to delete."""
    monkeypatch.setattr(removal, "PART_TRAJECTORIES", 5)
    monkeypatch.setattr(removal, "PART_EVENTS", 40)
    yard = make_yard(iterations=1)
    Run.objects.filter(pk=yard.run.pk).update(state="succeeded")
    edits.archive(run=yard.run)
    return yard


def references(run_id: int) -> dict[str, int]:
    """Return the numbers of rows that refer to a run or its trajectories, by table; 0 is left out."""
    counts = {}
    with connection.cursor() as cursor:
        for relation in Run._meta.related_objects:
            if relation.on_delete.__name__ == "CASCADE":  # type: ignore[union-attr]
                table, column = relation.related_model._meta.db_table, relation.field.column
                cursor.execute(f"SELECT count(*) FROM {table} WHERE {column} = %s", [run_id])
                counts[table] = cursor.fetchone()[0]
    return {table: count for table, count in counts.items() if count}


def test_a_worker_deletes_an_archived_run_with_all_its_rows(yard: Yard) -> None:
    other, _ = launched()
    before = snapshot(other)
    client = signed_in(Role.ADMIN)
    assert b"run-delete" not in client.get(f"/runs/{other.pk}/").content
    assert f"/runs/{yard.run.pk}/delete/" in client.get(f"/runs/{yard.run.pk}/").content.decode()
    assert client.post(f"/runs/{yard.run.pk}/delete/")["Location"] == "/runs/"
    entry = AuditEntry.objects.get(action="run.delete")
    assert (entry.target, entry.actor is None) == (f"run {yard.run.pk} {yard.run.name}", False)
    assert references(yard.run.pk)
    delete_run(yard.run.pk)
    delete_run(yard.run.pk)
    assert not references(yard.run.pk)
    assert not Run.objects.filter(pk=yard.run.pk).exists()
    assert not Trajectory.objects.exists()
    assert not Step.objects.exists()
    assert snapshot(other) == before
    entry.refresh_from_db()
    assert entry.run is None


def test_only_archived_runs_are_deleted(yard: Yard) -> None:
    run = yard.run.pk
    edits.restore(run=yard.run)
    events = Event.objects.filter(run=run).count()
    client = signed_in(Role.OPERATOR, "ada")
    hand_over("ada")
    response = client.delete(f"/api/v1/runs/{run}")
    assert response.status_code == 409
    assert "archive it first" in response.json()["detail"]
    with pytest.raises(CommandFailedError, match="archive it first"):
        run_command("run", "delete", run)
    deletion.delete(run_id=run)
    assert Event.objects.filter(run=run).count() == events
    edits.archive(run=yard.run)
    assert client.delete(f"/api/v1/runs/{run}").status_code == 202
    assert run_command("run", "delete", run) == f"run {run} is being deleted\n"


def test_a_run_whose_deletion_began_is_neither_restored_nor_resumed(yard: Yard) -> None:
    run = yard.run
    Run.objects.filter(pk=run.pk).update(state="failed")
    client = signed_in(Role.ADMIN)
    client.post(f"/runs/{run.pk}/delete/")
    assert deletion.delete(run_id=run.pk, seconds=-1.0)
    for action in ("restore", "resume"):
        answer = client.post(f"/api/v1/runs/{run.pk}/{action}")
        assert (answer.status_code, "is being deleted" in answer.json()["detail"]) == (409, True)
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert "is being deleted since" in page
    assert f"/runs/{run.pk}/restore/" not in page
    deletion.delete(run_id=run.pk)
    assert not Run.objects.filter(pk=run.pk).exists()


def test_lost_tasks_of_deletions_are_sent_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(deletion, "send", lambda _name, run_id: sent.append(run_id))
    deletion.request(run=yard.run)
    reconciler.reconcile()
    assert sent == []
    Run.objects.filter(pk=yard.run.pk).update(deleting_at=timezone.now() - deletion.RESEND_AFTER * 2)
    reconciler.reconcile()
    reconciler.reconcile()
    assert sent == [yard.run.pk]
