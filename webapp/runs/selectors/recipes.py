"""Reads of saved recipes."""

from __future__ import annotations

from webapp.runs.models.recipes import SavedRecipe


def saved_recipes() -> list[SavedRecipe]:
    """Return the recipes that people saved, by name."""
    return list(SavedRecipe.objects.select_related("created_by").order_by("name"))


def saved_recipe(name: str) -> SavedRecipe | None:
    """Return a saved recipe; None if there is none of this name."""
    return SavedRecipe.objects.filter(name=name).first()
