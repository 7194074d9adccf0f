"""Commands about saved recipes: ``run recipe list|save|remove``."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, command_group, print_json, print_result
from webapp.runs.api.recipes import recipe_record
from webapp.runs.cli.describe import RunId, find_run
from webapp.runs.selectors import recipes as reads
from webapp.runs.services import recipes as writes

app = command_group("List, save and remove recipes saved from runs; `run launch NAME` uses them.")
Name = Annotated[str, typer.Argument(help="Name of the recipe.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the saved recipes with their settings."""
    saved = reads.saved_recipes()
    if as_json:
        print_json([recipe_record(recipe) for recipe in saved])
        return
    for recipe in saved:
        settings = ", ".join(f"{key}={value}" for key, value in recipe.overrides.items())
        print(
            visible_line(" · ".join(filter(None, (recipe.name, recipe.base, settings, recipe.description))))
        )


@app.command()
def save(
    run_id: RunId,
    name: Name,
    description: Annotated[str, typer.Option(help="Purpose of the recipe.")] = "",
    as_json: AsJson = False,
) -> None:
    """Save a run's settings that differ from its recipe as a new recipe."""
    recipe = writes.save_recipe(run=find_run(run_id), name=name, description=description)
    number = len(recipe.overrides)
    line = f"{recipe}: {recipe.base} with {number} other setting{'s' * (number != 1)}"
    print_result(visible_line(line), recipe_record(recipe), as_json=as_json)


@app.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a saved recipe; runs keep their configuration."""
    recipe = reads.saved_recipe(name)
    if recipe is None:
        raise CommandError(f"there is no saved recipe '{name}'; `trainyard run recipe list` lists them")
    writes.remove_recipe(recipe=recipe)
    print_result(visible_line(f"removed {name}"), {"removed": name}, as_json=as_json)
