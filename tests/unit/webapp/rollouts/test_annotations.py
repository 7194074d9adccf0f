"""Labels and comments: page, API, commands, search, export, admin pages and roles."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import make_user, signed_in
from webapp.core.permissions import Role
from webapp.models import Annotation, AuditEntry, Run, Trajectory
from webapp.rollouts.selectors import learning
from webapp.rollouts.services import annotations as annotation_writes

pytestmark = pytest.mark.django_db
HOSTILE = '<script>alert("x")</script>\u202e'


@pytest.fixture
def yard() -> Yard:
    return make_yard(iterations=1, group_size=2)


def first(yard: Yard) -> Trajectory:
    return Trajectory.objects.filter(run=yard.run, phase="train", iteration=0).earliest("pk")


def page_of(row: Trajectory) -> str:
    return f"/runs/{row.run_id}/{row.phase}/{row.iteration}/{row.task_key}/{row.index}/"


def test_page_adds_shows_and_removes_labels_and_comments(yard: Yard) -> None:
    row, client = first(yard), signed_in(Role.OPERATOR)
    add = f"/trajectories/{row.pk}/annotations/"
    posted = client.post(add, {"kind": "label", "text": f"  odd \n{HOSTILE}", "step": "1"})
    assert posted.headers["Location"] == f"{page_of(row)}?from=1#step-1"
    client.post(add, {"kind": "label", "text": f"odd {HOSTILE}", "step": "1"})
    posted = client.post(add, {"kind": "comment", "text": "two\nlines", "step": ""})
    assert posted.headers["Location"] == f"{page_of(row)}#annotations"
    stored = [(a.kind, a.text, a.step_index) for a in Annotation.objects.filter(trajectory=row)]
    assert stored == [("label", f"odd {HOSTILE}", 1), ("comment", "two\nlines", None)], "labels are unique"
    page = client.get(page_of(row)).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "\u202e" not in page.partition("<datalist")[0]
    assert 'data-note-step="1" data-note-kind="label"' in page
    assert "two\nlines" in page
    listed = client.get(f"/runs/{row.run_id}/?tab=trajectories").content.decode()
    assert 'title="label of step 1"' in listed
    for annotation in Annotation.objects.all():
        client.post(f"{add}{annotation.pk}/remove/")
    assert not Annotation.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="annotation.").values_list("action", flat=True)
    assert sorted(actions) == ["annotation.add"] * 2 + ["annotation.remove"] * 2


def test_invalid_annotations_are_refused_with_the_reason(yard: Yard) -> None:
    row, client = first(yard), signed_in(Role.OPERATOR)
    for form, reason in (
        ({"kind": "label", "text": "x" * 101}, "a label has 1 to 100 characters, this one has 101"),
        ({"kind": "label", "text": " \n"}, "this one has 0"),
        ({"kind": "comment", "text": "x" * 10_001}, "1 to 10,000 characters"),
        ({"kind": "rating", "text": "5"}, "expected label or comment"),
        ({"kind": "label", "text": "x", "step": str(row.num_steps)}, f"has no step {row.num_steps}"),
        ({"kind": "label", "text": "x", "step": "-1"}, "expected a number"),
    ):
        page = client.post(f"/trajectories/{row.pk}/annotations/", form, follow=True).content.decode()
        assert f"Nothing was added: {'step: ' if reason.startswith('expected a') else ''}" in page, form
        assert reason in page, form
    assert not Annotation.objects.exists()


def test_annotations_of_one_trajectory_are_limited(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation_writes, "MOST", 2)
    row = first(yard)
    for text in ("a", "b"):
        annotation_writes.add(trajectory=row, kind="label", text=text)
    annotation_writes.add(trajectory=row, kind="label", text="a")
    with pytest.raises(annotation_writes.AnnotationError, match="has 2 labels and comments"):
        annotation_writes.add(trajectory=row, kind="label", text="c")


def test_authors_remove_their_own_and_administrators_all(yard: Yard) -> None:
    row = first(yard)
    ada, eve, admin = (
        signed_in(role, name)
        for role, name in ((Role.OPERATOR, "ada"), (Role.OPERATOR, "eve"), (Role.ADMIN, "root"))
    )
    address = f"/api/v1/trajectories/{row.pk}/annotations"
    for client, expected in ((eve, 403), (signed_in(Role.VIEWER), 403), (ada, 204), (admin, 204)):
        body = {"kind": "comment", "text": "mine", "step": 0}
        stored = ada.post(address, body, "application/json")
        assert (stored.status_code, stored.json()["author"]) == (201, "ada")
        number = stored.json()["id"]
        assert client.delete(f"{address}/{number}").status_code == expected
        form = client.post(f"/trajectories/{row.pk}/annotations/{number}/remove/")
        assert form.status_code == (403 if expected == 403 else 404)
        assert Annotation.objects.filter(pk=number).exists() is (expected == 403)
    assert ada.delete(f"{address}/999999").status_code == 404
    refused = ada.post(address, {"kind": "label", "text": "x", "step": 99}, "application/json")
    assert (refused.status_code, "has no step 99" in refused.json()["detail"]) == (422, True)


def test_labels_are_filters_of_page_api_and_command(yard: Yard) -> None:
    row = first(yard)
    run_command("trajectories", "label", row.pk, "lucky pass", "--step", 1)
    output = run_command("trajectories", "comment", row.pk, "why?")
    assert "label · step 1 · a command · lucky pass" in output
    assert "comment · trajectory · a command · why?" in output
    client = signed_in(Role.VIEWER)
    page = client.get("/trajectories/?label=lucky+pass").context
    assert [found.trajectory.pk for found in page["rows"]] == [row.pk]
    found = client.get("/api/v1/trajectories?label=lucky pass").json()
    assert [(item["id"], item["labels"]) for item in found["items"]] == [(row.pk, ["lucky pass"])]
    assert client.get("/api/v1/trajectories?label=lucky").json()["total"] == 0
    assert run_command("search", "--label", "lucky pass").startswith(page_of(row))
    detail = client.get(f"/api/v1/trajectories/{row.pk}").json()["annotations"]
    assert [entry["text"] for entry in detail] == ["lucky pass", "why?"]
    exported = next(learning.stored([row.pk]))
    assert json.loads(exported.model_dump_json())["annotations"][0] == {
        "kind": "label", "text": "lucky pass", "step": 1, "author": "",
    }  # fmt: skip
    number = Annotation.objects.get(kind="comment").pk
    left = json.loads(run_command("trajectories", "remove-annotation", row.pk, number, "--json"))
    assert [entry["kind"] for entry in left] == ["label"]
    with pytest.raises(CommandFailedError, match="no label or comment"):
        run_command("trajectories", "remove-annotation", row.pk, number)


def test_labels_of_oracle_rollouts_are_for_readers_of_answers(yard: Yard) -> None:
    row = first(yard)
    annotation_writes.add(trajectory=row, kind="label", text="gold", author=make_user("ada", Role.OPERATOR))
    Run.objects.filter(pk=row.run_id).update(config={**yard.run.config, "policy": {"type": "oracle"}})
    for role, total, labels in ((Role.VIEWER, 0, []), (Role.OPERATOR, 1, ["gold"])):
        client = signed_in(role)
        assert client.get("/api/v1/trajectories?label=gold").json()["total"] == total
        assert client.get("/trajectories/").context["labels"] == tuple(labels)
        items = client.get(f"/api/v1/trajectories?run={row.run_id}&size=500").json()["items"]
        assert next(item["labels"] for item in items if item["id"] == row.pk) == labels
        tab = client.get(f"/runs/{row.run_id}/?tab=trajectories").content.decode()
        assert ('title="label"' in tab) is bool(labels)
    assert signed_in(Role.VIEWER).get(f"/api/v1/trajectories/{row.pk}/annotations").status_code == 403


def test_administrators_find_and_remove_labels_in_the_admin_pages(yard: Yard) -> None:
    row, client = first(yard), signed_in(Role.ADMIN)
    annotation = annotation_writes.add(trajectory=row, kind="label", text="odd")
    assert "odd" in client.get("/admin/webapp/annotation/?q=odd").content.decode()
    client.post(f"/admin/webapp/annotation/{annotation.pk}/delete/", {"post": "yes"})
    assert not Annotation.objects.exists()
    entry = AuditEntry.objects.get(action="annotation.remove")
    assert entry.actor == User.objects.get(username="user-admin")
