"""Recipes: those that are shipped, and those saved from runs."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.errors import HttpError

from engine.config.recipes import RECIPES
from webapp.api.auth import caller, operator, role_of_caller, viewer
from webapp.core.permissions import check_author
from webapp.runs.api.runs import find
from webapp.runs.models.recipes import SavedRecipe
from webapp.runs.selectors import recipes as reads
from webapp.runs.services import recipes as writes

router = Router(tags=["runs"])


class RecipeOut(Schema):
    """A recipe."""

    name: str
    kind: str
    description: str
    base: str = ""
    """Shipped recipe that a saved one changes; empty for shipped ones."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of a saved recipe that differ from its base, by dotted name."""
    config: dict[str, Any] | None = None
    """Complete configuration of a shipped recipe; null for saved ones."""


class RecipeIn(Schema):
    """A recipe to save from a run."""

    run: int
    name: str
    description: str = ""


@router.get("/recipes", auth=viewer, response=list[RecipeOut])
def recipes(request: HttpRequest) -> list[Any]:
    """List all recipes, shipped ones first."""
    shipped = [
        RecipeOut(
            name=name,
            kind=config.kind,
            description=(recipe.__doc__ or "").strip(),
            config=config.model_dump(mode="json"),
        )
        for name, recipe in RECIPES.items()
        if (config := recipe())
    ]
    return [*shipped, *map(recipe_record, reads.saved_recipes())]


def recipe_record(recipe: SavedRecipe) -> dict[str, Any]:
    """Return a saved recipe as ``RecipeOut`` without a configuration."""
    return {
        "name": recipe.name, "kind": recipe.kind, "description": recipe.description, "base": recipe.base,
        "settings": recipe.overrides,
    }  # fmt: skip


@router.post("/recipes", auth=operator, response={201: RecipeOut})
def save_recipe(request: HttpRequest, body: RecipeIn) -> tuple[int, dict[str, Any]]:
    """Save a run's settings that differ from its recipe as a new recipe."""
    saved = writes.save_recipe(
        run=find(body.run), name=body.name, description=body.description, actor=caller(request)
    )
    return 201, recipe_record(saved)


@router.delete("/recipes/{name}", auth=operator, response={204: None})
def remove_recipe(request: HttpRequest, name: str) -> tuple[int, None]:
    """Remove a saved recipe; its creator and administrators may."""
    recipe = reads.saved_recipe(name)
    if recipe is None:
        raise HttpError(404, f"there is no saved recipe '{name}'")
    check_author(recipe.created_by_id, role_of_caller(request), caller(request).pk)
    writes.remove_recipe(recipe=recipe, actor=caller(request))
    return 204, None
