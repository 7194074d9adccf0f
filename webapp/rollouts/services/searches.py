"""Changes of saved searches."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from engine.errors import ConfigError
from webapp.core.permissions import Person, check_author
from webapp.core.services import audit
from webapp.rollouts.models.searches import SavedSearch
from webapp.rollouts.selectors.filters import TrajectoryFilters

MOST = 200
"""Maximum number of saved searches."""
NAME = r"\w[\w .,:()+-]{0,79}"


def save(*, name: str, filters: TrajectoryFilters, actor: Person | None = None) -> SavedSearch:
    """Save a search under a new name, or change one's own; administrators and commands may change any.

    Args:
        name: at most 80 letters, digits, spaces and ``_.,:()+-``.
        filters: the search.
        actor: its author; None for a command.

    Raises:
        ConfigError: a value is not valid; nothing was stored.
        PermissionDenied: the search of this name is another person's.
    """
    user = actor.user if actor is not None else None
    name = name.strip()
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            f"name: expected at most 80 letters, digits, spaces and _.,:()+-, not {name[:80]!r}"
        )
    if not filters.chosen():
        raise ConfigError("the search has no filter: enter words or choose one")
    with transaction.atomic():
        search = SavedSearch.objects.select_for_update().filter(name=name).first()
        if search is None:
            if SavedSearch.objects.count() >= MOST:
                raise ConfigError(f"there are {MOST} saved searches: remove one first")
            search = SavedSearch(name=name, author=user)
        elif actor is not None:
            check_author(search.author_id, actor.role, actor.user.pk)
        search.filters = filters.chosen()
        try:
            with transaction.atomic():
                search.save()
        except IntegrityError:
            raise ConfigError(f"name: somebody else has just saved a search {name!r}") from None
        audit.record(actor=user, action="search.save", target=str(search), changes=search.filters)
    return search


@transaction.atomic
def remove(*, search: SavedSearch, actor: User | None = None) -> None:
    """Delete a saved search."""
    audit.record(actor=actor, action="search.remove", target=str(search))
    search.delete()
