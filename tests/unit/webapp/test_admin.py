"""Admin pages: users and the last administrator, experiments, actions on runs."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.builders.commands import command_result
from tests.builders.web.web_builders import make_run, make_user, sign_in
from webapp.accounts.selectors.quotas import run_quotas
from webapp.core.permissions import Role, role_of
from webapp.experiments import services as experiments
from webapp.models import AuditEntry, Experiment, Run
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(make_user("root", Role.ADMIN))
    return client


def test_user_is_created_with_a_role(admin: Client) -> None:
    form = {"username": "eve", "usable_password": "true", "role": "operator"}
    form |= {"password1": "correct-horse-battery", "password2": "correct-horse-battery"}
    assert admin.post("/admin/auth/user/add/", form).status_code == 302
    assert role_of(User.objects.get(username="eve")) is Role.OPERATOR
    assert sign_in(Client(), "eve", "correct-horse-battery")


def test_user_role_password_and_access_can_be_changed(admin: Client) -> None:
    user = make_user("eve", Role.VIEWER)
    address = f"/admin/auth/user/{user.pk}/change/"
    weak = {"username": "eve", "email": "", "role": "operator", "new_password": "1234", "is_active": "on"}
    assert "too short" in admin.post(address, weak).content.decode()
    assert admin.post(address, weak | {"new_password": "another-horse-battery"}).status_code == 302
    assert role_of(User.objects.get(pk=user.pk)) is Role.OPERATOR
    assert sign_in(Client(), "eve", "another-horse-battery")
    assert AuditEntry.objects.filter(action="account.role", actor__username="root").exists()
    admin.post(address, {"username": "eve", "email": "", "role": "operator", "new_password": ""})
    assert not User.objects.get(pk=user.pk).is_active


def test_last_admin_cannot_be_demoted(admin: Client) -> None:
    user = User.objects.get(username="root")
    form = {"username": "root", "email": "", "role": "viewer", "new_password": "", "is_active": "on"}
    page = admin.post(f"/admin/auth/user/{user.pk}/change/", form, follow=True).content.decode()
    assert "last admin" in page
    assert role_of(User.objects.get(pk=user.pk)) is Role.ADMIN


def test_experiments_are_created_edited_and_deleted_through_the_service(admin: Client) -> None:
    admin.post("/admin/webapp/experiment/add/", {"name": "first", "goal": "why"})
    experiment = Experiment.objects.get()
    assert experiment.created_by is not None
    assert experiment.created_by.username == "root"
    run = make_run()
    Run.objects.filter(pk=run.pk).update(experiment=experiment)
    address = f"/admin/webapp/experiment/{experiment.pk}/"
    assert admin.get(f"{address}change/").status_code == 200
    admin.post(f"{address}change/", {"goal": "why", "hypothesis": "h", "conclusion": "", "name": "other"})
    experiment.refresh_from_db()
    assert (experiment.name, experiment.hypothesis) == ("first", "h")
    long = admin.post(f"{address}change/", {"goal": "x" * 20_001})
    assert "at most 20000 characters" in long.content.decode()
    admin.post(f"{address}delete/", {"post": "yes"})
    assert Run.objects.get().experiment is None
    actions = AuditEntry.objects.filter(target="experiment first").values_list("action", flat=True)
    assert sorted(actions) == ["experiment.create", "experiment.delete", "experiment.edit"]


def sent(page: str) -> dict[str, list[str]]:
    """Return the hidden fields of a confirmation, as a browser sends them."""
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page):
        fields.setdefault(name, []).append(value)
    return fields


def test_an_edit_of_an_experiment_does_not_overwrite_a_newer_one(admin: Client) -> None:
    experiment = experiments.create(name="first", goal="old")
    address = f"/admin/webapp/experiment/{experiment.pk}/change/"
    version = admin.get(address).context["adminform"].form["version"].value()
    experiments.edit(experiment=experiment, texts={"goal": "theirs"})
    form = {"goal": "mine", "hypothesis": "", "conclusion": "", "max_rollouts": "50", "version": version}
    refused = admin.post(address, form)
    experiment.refresh_from_db()
    assert experiment.goal == "theirs"
    assert "yours was not saved" in refused.content.decode()
    assert ">\nmine</textarea>" in refused.content.decode()
    # Saved again, it replaces the newer texts knowingly.
    admin.post(address, form | {"version": refused.context["adminform"].form["version"].value()})
    experiment.refresh_from_db()
    assert (experiment.goal, experiment.max_rollouts) == ("mine", 50)
    stale = command_result("experiment", "edit", "first", "--goal", "x", "--version", version)
    assert "were edited after they were read" in stale.errors


def test_a_quota_of_runs_is_set_on_the_page_of_a_user(admin: Client) -> None:
    user = make_user("ada", Role.OPERATOR)
    form = {"username": "ada", "role": "operator", "is_active": "on", "runs_at_once": "3"}
    address = f"/admin/auth/user/{user.pk}/change/"
    admin.post(address, form)
    assert run_quotas() == {user.pk: 3}
    assert 'value="3"' in admin.get(address).content.decode()
    admin.post(address, form | {"runs_at_once": ""})
    assert run_quotas() == {}


def test_runs_are_stopped_archived_and_tagged_after_a_confirmation(admin: Client) -> None:
    draft, done = make_run(name="<b>draft"), make_run()
    runs.stop(run=done)
    chosen = {"_selected_action": [draft.pk, done.pk], "action": "stop_runs"}
    asked = admin.post("/admin/webapp/run/", chosen).content.decode()
    assert "&lt;b&gt;draft" in asked
    assert "1 other selected run is archived or in a state" in asked
    draft.refresh_from_db()
    assert draft.state == "draft"
    admin.post("/admin/webapp/run/", sent(asked) | {"confirmed": "1"})
    draft.refresh_from_db()
    assert draft.state == "stopped"
    entry = AuditEntry.objects.filter(action="run.stop", run=draft).get()
    assert entry.actor is not None
    across = {"_selected_action": [draft.pk], "select_across": "1", "action": "tag_runs"}
    tagged = sent(admin.post("/admin/webapp/run/", across).content.decode()) | {"confirmed": "1"}
    refused = admin.post("/admin/webapp/run/", tagged | {"tag": "a,b"}, follow=True)
    assert "Nothing was changed: tags: a tag has" in refused.content.decode()
    admin.post("/admin/webapp/run/", tagged | {"tag": "sweep"})
    assert list(Run.objects.values_list("tags", flat=True)) == [["sweep"], ["sweep"]]
    experiment = Experiment.objects.create(name="first")
    Run.objects.update(experiment=experiment)
    form = {"_selected_action": [experiment.pk], "action": "archive_runs"}
    asked = admin.post("/admin/webapp/experiment/", form).content.decode()
    assert "2 runs:" in asked
    later = make_run()
    Run.objects.filter(pk=later.pk).update(experiment=experiment)
    admin.post("/admin/webapp/experiment/", sent(asked) | {"confirmed": "1"})
    assert list(Run.objects.filter(archived_at=None)) == [later], "the confirmation did not list it"
    asked = admin.post("/admin/webapp/experiment/", form).content.decode()
    assert "2 other selected runs are archived" in asked
    admin.post("/admin/webapp/experiment/", sent(asked) | {"confirmed": "1"})
    assert not Run.objects.filter(archived_at=None).exists()
    again = admin.post("/admin/webapp/experiment/", form, follow=True)
    assert "no selected run allows it" in again.content.decode()


def test_run_page_shows_its_configuration_and_links(admin: Client) -> None:
    run = make_run(name="<i>x")
    page = admin.get(f"/admin/webapp/run/{run.pk}/change/").content.decode()
    assert f'<a href="/runs/{run.pk}/">open</a>' in page
    assert "&quot;trainer&quot;: {\n" in page
    assert "<i>x" not in page
    for query in ("?archived_at__isempty=1", "?q=x", "?state__exact=draft"):
        assert admin.get(f"/admin/webapp/run/{query}").status_code == 200
