"""Recipes saved from runs: what they keep, and where they are used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.config.recipes import RECIPES
from engine.errors import ConfigError
from tests.builders.commands import command_result, run_command
from tests.builders.web.web_builders import make_run, signed_in
from webapp.core.permissions import Role
from webapp.models import AuditEntry, Run, SavedRecipe
from webapp.runs.services import runs
from webapp.runs.services.recipes import MAX_DESCRIPTION, save_recipe

pytestmark = pytest.mark.django_db
CHANGES: dict[str, Any] = {"trainer.learning_rate": 0.25, "name": "mine", "algorithm.preset": "grpo"}


def without_names(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in ("name", "recipe")}


def test_a_saved_recipe_makes_runs_with_the_same_settings() -> None:
    run = make_run(**CHANGES)
    saved = save_recipe(run=run, name="grpo-fast", description="For <b>small</b> data")
    assert saved.base == "quickstart"
    assert saved.overrides["trainer.learning_rate"] == 0.25
    assert "trainer.iterations" not in saved.overrides
    assert {"name", "recipe"}.isdisjoint(saved.overrides)
    again = runs.create(recipe="grpo-fast", overrides={})
    assert without_names(again) == without_names(run)
    assert (again.recipe, again.name) == ("grpo-fast", "grpo-fast")
    changed = runs.create(recipe="grpo-fast", overrides={"trainer.iterations": 3})
    assert changed.config["trainer"] == run.config["trainer"] | {"iterations": 3}
    # Saved once more, it is still over the shipped recipe.
    second = save_recipe(run=changed, name="grpo-short")
    assert (second.base, second.overrides) == ("quickstart", saved.overrides | {"trainer.iterations": 3})


@pytest.mark.parametrize(
    "recipe", ["frozenlake", "quickstart-collect", "quickstart-sft", "quickstart-dataset"]
)
def test_every_kind_of_run_can_be_saved(recipe: str) -> None:
    run = runs.create(recipe=recipe, overrides={"seed": 5})
    saved = save_recipe(run=run, name="copy")
    assert without_names(runs.create(recipe="copy", overrides={})) == without_names(run)
    assert saved.kind == run.kind


def test_refused_names_and_runs() -> None:
    run = make_run()
    save_recipe(run=run, name="taken")
    for name in ("", "Upper", "a b", "../etc", "x" * 101, "quickstart", "taken"):
        with pytest.raises(ConfigError):
            save_recipe(run=run, name=name)
    with pytest.raises(ConfigError, match="2,000 characters"):
        save_recipe(run=run, name="long", description="x" * (MAX_DESCRIPTION + 1))
    Run.objects.filter(pk=run.pk).update(recipe="")
    run.refresh_from_db()
    with pytest.raises(ConfigError, match="not created from a recipe"):
        save_recipe(run=run, name="other")


def test_page_api_and_command_save_list_use_and_remove_recipes() -> None:
    operator, run = signed_in(Role.OPERATOR, "ada"), make_run(**{"trainer.learning_rate": 0.25})
    assert "Save as a recipe" in operator.get(f"/runs/{run.pk}/?tab=configuration").content.decode()
    operator.post(f"/runs/{run.pk}/recipe/", {"name": "fast", "description": "quick <i>tries</i>"})
    listed = operator.get("/runs/new/").content.decode()
    assert "quick &lt;i&gt;tries&lt;/i&gt;" in listed
    assert listed.index(">Saved<") < listed.index("quickstart")
    form = operator.get("/runs/new/?recipe=fast").content.decode()
    assert 'name="trainer.learning_rate"' in form
    assert 'value="0.25"' in form
    operator.post("/runs/new/", {"recipe": "fast", "then": "draft"})
    assert Run.objects.latest("pk").config["trainer"]["learning_rate"] == 0.25
    page = operator.get(f"/runs/{Run.objects.latest('pk').pk}/?tab=configuration")
    assert "Same as the recipe fast" in page.content.decode()
    body = {"run": run.pk, "name": "second", "description": ""}
    assert operator.post("/api/v1/recipes", body, content_type="application/json").status_code == 201
    names = [recipe["name"] for recipe in operator.get("/api/v1/recipes").json()]
    assert names == [*RECIPES, "fast", "second"]
    (launched,) = json.loads(run_command("run", "launch", "fast", "--draft", "--json"))
    assert launched["recipe"] == "fast"
    assert [recipe["name"] for recipe in json.loads(run_command("run", "recipe", "list", "--json"))] == [
        "fast", "second",
    ]  # fmt: skip
    printed = run_command("run", "recipe", "save", run.pk, "third")
    assert printed == "recipe third: quickstart with 1 other setting\n"
    run_command("run", "recipe", "remove", "third")
    assert "no saved recipe 'third'" in command_result("run", "recipe", "remove", "third").errors
    other = signed_in(Role.OPERATOR, "eve")
    assert other.delete("/api/v1/recipes/fast").status_code == 403
    assert other.post("/runs/recipes/fast/remove/").status_code == 403
    operator.post("/runs/recipes/fast/remove/")
    assert operator.delete("/api/v1/recipes/second").status_code == 204
    assert not SavedRecipe.objects.exists()
    assert {"recipe.save", "recipe.remove"} <= set(AuditEntry.objects.values_list("action", flat=True))
    # Runs of a removed recipe keep their page.
    assert operator.get(f"/runs/{Run.objects.latest('pk').pk}/?tab=configuration").status_code == 200


def test_saved_recipes_choose_trajectories() -> None:
    save_recipe(run=runs.create(recipe="quickstart-fine-tune"), name="mine")
    client = signed_in(Role.OPERATOR, "ada")
    answer = client.post("/api/v1/trajectories/choose", {"recipe": "mine"}, content_type="application/json")
    assert (answer.status_code, answer.json()["ids"]) == (200, [])
    assert json.loads(run_command("trajectories", "count", "--recipe", "mine"))["trajectories"] == 0
