"""The form of a new run: every setting appears, and only differences become overrides."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.recipes import RECIPES, resolve
from webapp.contexts.run_form import FormSection, errors_by_field, form_sections, parse_overrides, recipe_base


def sections_of(
    recipe: str, posted: dict[str, str] | None = None, error: str = ""
) -> tuple[FormSection, ...]:
    return form_sections(recipe_base(recipe), posted=posted or {}, error=error, datasets=())


def leaves(data: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in data.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"}
    return found


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_setting_of_a_recipe_is_a_field_with_help(recipe: str) -> None:
    sections = sections_of(recipe)
    fields = [field for section in sections for field in section.fields]
    assert {field.key for field in fields} == leaves(recipe_base(recipe)) - {"kind", "recipe"}
    assert all(field.help or field.name == "type" for field in fields)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_posting_the_form_unchanged_changes_nothing(recipe: str) -> None:
    fields = [field for section in sections_of(recipe) for field in section.fields]
    posted = {field.key: field.value.replace("\n", "\r\n") for field in fields}
    again = sections_of(recipe, posted)
    assert parse_overrides(again) == {}
    assert resolve(recipe, {}) == resolve(recipe, parse_overrides(again))


def test_differences_become_overrides_that_resolve() -> None:
    posted = {
        "name": "mine", "trainer.iterations": "5", "agent.step_reminder": "true", "dataset.limit": "3",
        "algorithm.filtered_reasons": "max_steps\r\nenv_timeout\r\n", "algorithm.clip_high": "0.3",
    }  # fmt: skip
    overrides = parse_overrides(sections_of("quickstart", posted))
    assert set(overrides) == set(posted)
    config = resolve("quickstart", overrides).model_dump(mode="json")
    assert (config["name"], config["trainer"]["iterations"], config["dataset"]["limit"]) == ("mine", 5, 3)
    assert config["agent"]["step_reminder"] is True
    assert config["algorithm"]["filtered_reasons"] == ["max_steps", "env_timeout"]


def test_an_emptied_optional_setting_becomes_none() -> None:
    base = recipe_base("quickstart")
    base["dataset"]["limit"] = 7
    sections = form_sections(base, posted={"dataset.limit": ""}, error="", datasets=())
    assert parse_overrides(sections) == {"dataset.limit": None}


def test_an_error_is_put_beside_its_field() -> None:
    message = "trainer.iterations: Input should be greater than or equal to 1; something general"
    assert errors_by_field(message) == {"trainer.iterations": "Input should be greater than or equal to 1"}
    fields = {
        f.key: f for s in sections_of("quickstart", {"trainer.iterations": "0"}, message) for f in s.fields
    }
    assert fields["trainer.iterations"].error.startswith("Input should be")
    assert fields["trainer.iterations"].value == "0"
