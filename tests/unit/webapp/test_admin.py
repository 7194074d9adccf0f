"""User management on the admin pages: roles, passwords, and protection of the last administrator."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.builders.web.web_builders import make_user, sign_in
from webapp.core.permissions import Role, role_of
from webapp.models import AuditEntry, Experiment

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


def test_experiment_records_its_creator(admin: Client) -> None:
    admin.post("/admin/webapp/experiment/add/", {"name": "first", "goal": "why"})
    experiment = Experiment.objects.get()
    assert experiment.created_by is not None
    assert experiment.created_by.username == "root"
