"""Saved views of the runs table."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.http import QueryDict

from engine.errors import ConfigError, Problem
from webapp.core.services import audit
from webapp.core.services.cleaning import without_nul
from webapp.runs.models.run_views import RunView

MAX_NAME = 100
MAX_QUERY = 2000
MAX_VIEWS = 50
_PARAMETERS = (
    "state", "kind", "experiment", "dataset", "tag", "archived", "q", "sort", "columns", "group",
)  # fmt: skip


@transaction.atomic
def save_view(*, user: User, name: str, query: str, is_default: bool = False) -> RunView:
    """Store a view; one of the same name is replaced.

    Args:
        user: the person.
        name: name of the view.
        query: query string of the table; other parameters are left out, the page too.
        is_default: whether the table opens with it; another default then ends.

    Raises:
        ConfigError: the name is empty or contains '/', a text is too long, or the person has too many views.
    """
    User.objects.select_for_update().get(pk=user.pk)
    name = " ".join(without_nul(name).split())
    if not 0 < len(name) <= MAX_NAME:
        raise ConfigError(Problem(f"1 to {MAX_NAME} characters are allowed, not {len(name):,}", "name"))
    if "/" in name:
        raise ConfigError(Problem("'/' is not allowed: the name is part of an address of the API", "name"))
    if len(query) > MAX_QUERY:
        raise ConfigError(
            Problem(f"at most {MAX_QUERY:,} characters are allowed, not {len(query):,}", "query")
        )
    others = RunView.objects.filter(user=user).exclude(name=name)
    if others.count() >= MAX_VIEWS:
        raise ConfigError(Problem(f"a person has at most {MAX_VIEWS} views: remove one first", "name"))
    if is_default:
        others.update(is_default=False)
    given = QueryDict(without_nul(query.lstrip("?")), mutable=True)
    for parameter in [parameter for parameter in given if parameter not in _PARAMETERS]:
        del given[parameter]
    view, _ = RunView.objects.update_or_create(
        user=user, name=name, defaults={"query": given.urlencode(safe=",:/"), "is_default": is_default}
    )
    audit.record(actor=user, action="run_view.save", target=f"view {name}")
    return view


@transaction.atomic
def remove_view(*, user: User, name: str) -> None:
    """Remove a view. Raises ConfigError if the person has none of this name."""
    removed, _ = RunView.objects.filter(user=user, name=name).delete()
    if not removed:
        raise ConfigError(Problem(f"there is no view '{name[:MAX_NAME]}'", "name"))
    audit.record(actor=user, action="run_view.remove", target=f"view {name}")
