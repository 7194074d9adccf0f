"""Commands about users: ``account create|token|reset-password|unlock|sign-out|ensure-admin``."""

from __future__ import annotations

from typing import Annotated

import typer
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from webapp.accounts.services import accounts, sign_ins
from webapp.core.cli import AsJson, CommandError, command_group, print_result
from webapp.core.permissions import Role

app = command_group("Create users and API tokens; help users who cannot sign in.")
Username = Annotated[str, typer.Argument(help="Name of the user.")]


@app.command()
def create(
    username: Username,
    role: Annotated[Role, typer.Option(help="Role of the user.")] = Role.VIEWER,
    as_json: AsJson = False,
) -> None:
    """Create a user and print a random password, which is shown only now."""
    # There is no option for a password: it would stay in the shell's history.
    password = accounts.random_password()
    try:
        accounts.create_user(username=username, password=password, role=role)
    except ValidationError as error:
        raise CommandError(str(error)) from None
    line = f"{username} ({role}) may sign in with password {password}"
    print_result(line, {"username": username, "role": role, "password": password}, as_json=as_json)


@app.command()
def token(
    username: Username,
    name: Annotated[str, typer.Argument(help="Name of the token, e.g. its purpose.")],
    scope: Annotated[Role, typer.Option(help="Highest role that the token grants.")] = Role.VIEWER,
    days: Annotated[int, typer.Option(help="Lifetime in days.")] = accounts.TOKEN_DAYS,
    as_json: AsJson = False,
) -> None:
    """Create a personal API token and print it; only its hash is stored."""
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise CommandError(f"there is no active user '{username}'")
    secret = accounts.create_token(user=user, name=name, scope=scope, days=days)
    print_result(secret, {"username": username, "name": name, "token": secret}, as_json=as_json)


@app.command("reset-password")
def reset_password(username: Username, as_json: AsJson = False) -> None:
    """Give a user a random password and print it; the user's API tokens and sessions end."""
    user, password = find_user(username), accounts.random_password()
    accounts.set_password(user=user, password=password)
    line = f"{user.get_username()} may sign in with password {password}"
    print_result(line, {"username": user.get_username(), "password": password}, as_json=as_json)


@app.command()
def unlock(username: Username, as_json: AsJson = False) -> None:
    """Reset a user's failed sign-in attempts from every address."""
    user = find_user(username)
    accounts.unlock(user=user)
    line = f"{user.get_username()} may try to sign in again"
    print_result(line, {"username": user.get_username()}, as_json=as_json)


@app.command("sign-out")
def sign_out(username: Username, as_json: AsJson = False) -> None:
    """End all sessions of a user; API tokens stay valid."""
    user = find_user(username)
    ended = sign_ins.end_all(user=user)
    line = f"{ended} sessions of {user.get_username()} were ended"
    print_result(line, {"username": user.get_username(), "ended": ended}, as_json=as_json)


@app.command()
def quota(
    username: Username,
    runs_at_once: Annotated[
        int | None, typer.Argument(metavar="[RUNS]", help="Runs at once; without it the general limit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set how many runs of a user may be active at once; others wait in the queue."""
    user = find_user(username)
    accounts.set_quota(user=user, runs_at_once=runs_at_once)
    limit = "the general limit" if runs_at_once is None else f"{runs_at_once} runs at once"
    line = f"{user.get_username()}: {limit}"
    print_result(line, {"username": user.get_username(), "runs_at_once": runs_at_once}, as_json=as_json)


@app.command("ensure-admin")
def ensure_admin(as_json: AsJson = False) -> None:
    """Create the first administrator and print a random password; print nothing if one exists."""
    password = accounts.ensure_admin()
    if password is not None:
        line = f"Sign in as admin with password {password} (shown only now)"
        print_result(line, {"username": "admin", "password": password}, as_json=as_json)


def find_user(username: str) -> User:
    """Return a user by name. Raises CommandError when there is none."""
    user = User.objects.filter(username=username).first()
    if user is None:
        raise CommandError(f"there is no user '{username}'")
    return user
