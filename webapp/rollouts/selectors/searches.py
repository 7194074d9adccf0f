"""Reads of saved searches."""

from __future__ import annotations

from webapp.rollouts.models.searches import SavedSearch


def saved_searches() -> list[SavedSearch]:
    """Return all saved searches by name, with their authors."""
    return list(SavedSearch.objects.select_related("author"))


def saved_search(name: str) -> SavedSearch | None:
    """Return a saved search."""
    return SavedSearch.objects.filter(name=name).first()
