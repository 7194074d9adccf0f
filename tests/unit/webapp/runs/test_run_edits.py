"""Edits of runs by page, API and command: names, tags, notes, experiments, archive, acknowledgement."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.web_builders import hand_over, make_run, make_user
from webapp.core.permissions import Role
from webapp.models import AuditEntry, Experiment, Run
from webapp.runs.selectors import runs as reads
from webapp.runs.selectors.run_table import RunFilters, list_runs
from webapp.runs.services import batches, edits
from webapp.runs.services import runs as run_writes

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    return client


def own_run(**overrides: Any) -> Run:
    """Create a draft owned by ada."""
    run = make_run(**overrides)
    hand_over("ada")
    run.refresh_from_db()
    return run


def fail(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(state="failed", finished_at=timezone.now(), reason="it broke")


def test_a_run_is_edited_from_its_page(operator: Client) -> None:
    run = own_run(name="old")
    form = {
        "name": "new", "tags": "slow,  lr sweep ,slow,", "notes": "why\r\nnot", "experiment": "",
        "new_experiment": "first",
    }  # fmt: skip
    assert operator.post(f"/runs/{run.pk}/edit/", form)["Location"] == f"/runs/{run.pk}/"
    run.refresh_from_db()
    assert (run.name, run.tags, run.notes) == ("new", ["lr sweep", "slow"], "why\nnot")
    assert run.experiment == Experiment.objects.get(name="first")
    entry = AuditEntry.objects.get(action="run.edit")
    assert entry.changes["name"] == {"old": "old", "new": "new"}
    assert entry.actor is not None
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    assert "?tag=lr%20sweep" in page
    operator.post(f"/runs/{run.pk}/edit/", form | {"new_experiment": "", "experiment": "first"})
    assert AuditEntry.objects.filter(action="run.edit").count() == 1
    operator.post(f"/runs/{run.pk}/edit/", form | {"new_experiment": ""})
    assert Run.objects.get().experiment is None
    operator.post(f"/runs/{run.pk}/edit/", {"name": " ", "tags": "x" * 60})
    run.refresh_from_db()
    assert (run.name, run.tags) == ("new", ["lr sweep", "slow"])


def test_run_list_filters_by_tag_and_omits_archived_runs(operator: Client) -> None:
    tagged, other = own_run(name="alpha"), own_run(name="beta")
    operator.post(f"/runs/{tagged.pk}/edit/", {"tags": 'a"b'})
    operator.post(f"/runs/{other.pk}/archive/")

    def run_ids(**filters: str) -> list[int]:
        return [run.pk for run in list_runs(RunFilters(**filters), number=1).rows]  # type: ignore[arg-type]

    assert run_ids() == run_ids(tag='a"b') == [tagged.pk]
    assert run_ids(archived="only") == [other.pk]
    assert run_ids(archived="all") == [other.pk, tagged.pk]
    assert run_ids(tag="a") == []
    assert reads.tag_choices() == ['a"b']
    assert "beta" not in operator.get("/runs/").content.decode()
    assert "beta" in operator.get("/runs/?archived=only").content.decode()
    assert "Archived" in operator.get(f"/runs/{other.pk}/").content.decode()
    operator.post(f"/runs/{other.pk}/restore/")
    assert run_ids() == [other.pk, tagged.pk]
    run_writes.start(run=tagged)
    operator.post(f"/runs/{tagged.pk}/archive/")
    assert run_ids() == [other.pk, tagged.pk], "a queued run is not archived"


def test_selected_runs_are_changed_together_where_they_allow_it(operator: Client) -> None:
    first, second = own_run(name="alpha"), own_run(name="beta")
    stranger = make_run(name="gamma")
    numbers = [str(run.pk) for run in (first, second, stranger)]
    page = operator.get("/runs/selected/", {"run": [*numbers, "x", "99999999999999999999"]}).content.decode()
    assert all(name in page for name in ("alpha", "beta", "gamma"))

    def change(action: str, **fields: str) -> str:
        posted = {"run": numbers, "action": action, **fields}
        return operator.post("/runs/selected/", posted, follow=True).content.decode()

    listed = change("tag", tag="  lr   sweep ")
    assert "2 runs changed" in listed
    assert f"run {stranger.pk} was not changed" in listed
    assert [run.tags for run in Run.objects.order_by("pk")] == [["lr sweep"], ["lr sweep"], []]
    assert "changed." not in change("tag", tag="lr sweep"), "both have the tag already"
    assert "name the tag to add" in change("tag", tag=" ")
    assert AuditEntry.objects.filter(action="run.edit").count() == 2
    run_writes.start(run=first)
    assert "1 run changed" in change("archive")
    assert list(Run.objects.exclude(archived_at=None)) == [second]
    change("restore")
    assert not Run.objects.exclude(archived_at=None).exists()
    change("stop")
    assert Run.objects.get(pk=first.pk).state == "stopped"
    assert "there is no action" in change("delete")
    assert Run.objects.count() == 3
    assert "No run is selected" in operator.get("/runs/selected/").content.decode()


def test_enter_in_the_field_of_a_tag_stops_nothing(operator: Client) -> None:
    run = own_run()
    page = operator.get("/runs/selected/", {"run": run.pk}).content.decode()
    buttons = re.findall(r'name="action"\s+value="(\w+)"(\s+data-confirm)?', page)
    assert [name for name, _ in buttons] == ["tag", "restore", "archive", "stop"]
    assert all(confirm for name, confirm in buttons if name in ("archive", "stop"))


def test_a_change_of_selected_runs_returns_to_the_filtered_list(operator: Client) -> None:
    run = own_run()
    listed = operator.get("/runs/?state=draft&q=a%0Ab").content.decode()
    assert 'name="back" value="state=draft&amp;q=a%0Ab"' in listed
    page = operator.get("/runs/selected/", {"run": str(run.pk), "back": "state=draft&q=a%0Ab"})
    assert page.context["back"] == "state=draft&q=a%0Ab"
    posted = {"run": run.pk, "action": "tag", "tag": "x", "back": "state=draft&q=a%0Ab\n"}
    assert operator.post("/runs/selected/", posted)["Location"] == "/runs/?state=draft&q=a%0Ab%0A"


def test_a_tag_is_added_to_those_that_the_run_has_by_then() -> None:
    run = make_run()
    stale = Run.objects.get(pk=run.pk)
    edits.edit(run=run, changes=edits.Edit(tags=["theirs"]))
    batches.change_all(batch=[stale], action="tag", tag="mine")
    assert Run.objects.get(pk=run.pk).tags == ["mine", "theirs"]


def test_a_failure_is_acknowledged_until_the_run_is_resumed(operator: Client) -> None:
    run = own_run()
    fail(run)
    assert "it broke" in operator.get("/").content.decode()
    response = operator.post(f"/runs/{run.pk}/acknowledge/", {"next": "overview"})
    assert response["Location"] == "/"
    run.refresh_from_db()
    assert run.acknowledged_by is not None
    assert not reads.troubled_runs(now=timezone.now())
    assert "by ada" in operator.get(f"/runs/{run.pk}/").content.decode()
    run_writes.resume(run=run)
    run.refresh_from_db()
    assert run.acknowledged_at is None
    operator.post(f"/runs/{run.pk}/acknowledge/")
    run.refresh_from_db()
    assert run.acknowledged_at is None, "only failures are acknowledged"


def test_runs_are_edited_by_api_and_command(operator: Client) -> None:
    run = own_run()
    body = {"name": "mine", "tags": ["a"], "experiment": "first"}
    answer = operator.post(f"/api/v1/runs/{run.pk}/edit", body, "application/json")
    assert answer.status_code == 200
    assert (answer.json()["tags"], answer.json()["name"]) == (["a"], "mine")
    assert operator.post(f"/api/v1/runs/{run.pk}/edit", {"name": ""}, "application/json").status_code == 422
    printed = run_command("run", "edit", run.pk, "--tag", "b", "--untag", "a", "--notes", "n", "--archive")
    assert printed.endswith("mine · b\n")
    assert operator.get("/api/v1/runs").json()["total"] == 0
    assert operator.get("/api/v1/runs?archived=only&tag=b").json()["items"][0]["notes"] == "n"
    assert operator.post(f"/api/v1/runs/{run.pk}/restore").json()["archived_at"] is None
    assert operator.post(f"/api/v1/runs/{run.pk}/acknowledge").status_code == 409
    with pytest.raises(CommandFailedError, match="cannot become acknowledged"):
        run_command("run", "edit", run.pk, "--acknowledge")
    assert "1 of 1 runs" in run_command("run", "list", "--tag", "b")


def test_edit_never_overwrites_an_edit_unseen_by_its_author(operator: Client) -> None:
    run = own_run(name="old")
    client = Client()
    client.force_login(make_user("eve", Role.ADMIN))
    seen = client.get(f"/runs/{run.pk}/").context["edit"]
    form = {
        "name": "hers",
        "tags": "",
        "notes": "line one\r\nline two",
        "experiment": "",
        "new_experiment": "e",
    }
    operator.post(
        f"/runs/{run.pk}/edit/", {**form, "name": "ada's <b>", "notes": "", "version": seen.version}
    )
    refused = client.post(
        f"/runs/{run.pk}/edit/", {**form, "version": seen.version, "new_experiment": "mine"}
    )
    assert refused.status_code == 409
    context = refused.context
    assert context["by"] == "ada"
    assert dict(context["theirs"]) == {"Name": "ada's <b>", "Notes": "", "Experiment": "e"}
    page = refused.content.decode()
    assert "line one" in page
    assert "ada&#x27;s &lt;b&gt;" in page
    run.refresh_from_db()
    assert (run.name, run.notes) == ("ada's <b>", "")
    assert not Experiment.objects.filter(name="mine").exists()
    same = {"name": "ada's <b>", "version": seen.version}
    assert client.post(f"/runs/{run.pk}/edit/", same).status_code == 302, "nothing would change"
    again = {**form, "version": context["form"].version, "new_experiment": "mine"}
    assert client.post(f"/runs/{run.pk}/edit/", again).status_code == 302
    run.refresh_from_db()
    assert (run.name, run.notes) == ("hers", "line one\nline two")
