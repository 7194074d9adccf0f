"""The form of a new run: every setting appears, and only differences become overrides."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.recipes import RECIPES, resolve
from engine.errors import ConfigError, Problem
from webapp.contexts.forms.differences import Origin, count_differences
from webapp.contexts.forms.form_bases import rebase, recipe_base
from webapp.contexts.forms.run_form import FormSection, check, form_sections, parse_overrides
from webapp.contexts.forms.run_offers import run_offers
from webapp.models import Dataset

pytestmark = pytest.mark.django_db


def sections_of(
    recipe: str, posted: dict[str, str] | None = None, problems: tuple[Problem, ...] = ()
) -> tuple[FormSection, ...]:
    return form_sections(recipe_base(recipe), posted=posted or {}, problems=problems, offers={})


def leaves(data: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in data.items():
        section = isinstance(value, dict) and value
        found |= leaves(value, f"{prefix}{key}.") if section else {f"{prefix}{key}"}
    return found


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_setting_of_a_recipe_is_a_field_with_help(recipe: str) -> None:
    sections = sections_of(recipe)
    fields = [field for section in sections for field in section.fields]
    assert {field.key for field in fields} == leaves(recipe_base(recipe)) - {
        "kind",
        "data",
        "method",
        "recipe",
    }
    assert all(field.help or field.name == "type" for field in fields)


def test_sections_of_sections_and_mappings_can_be_set() -> None:
    posted = {"sandbox.kubernetes.node_selector": '{"disk": "ssd"}', "sandbox.docker.image_budget_gb": "7"}
    overrides = parse_overrides(sections_of("quickstart", posted))
    assert overrides["sandbox.kubernetes.node_selector"] == {"disk": "ssd"}
    config = resolve("quickstart", overrides).model_dump(mode="json")
    assert config["sandbox"]["kubernetes"]["node_selector"] == {"disk": "ssd"}
    assert config["sandbox"]["docker"]["image_budget_gb"] == 7


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
    sections = form_sections(base, posted={"dataset.limit": ""}, problems=(), offers={})
    assert parse_overrides(sections) == {"dataset.limit": None}


def test_an_error_is_put_beside_its_field_in_full() -> None:
    posted = {"trainer.iterations": "0", "algorithm.preset": "a; trainer.seed: b"}
    with pytest.raises(ConfigError) as caught:
        resolve("quickstart", posted)
    problems = caught.value.problems + (Problem("something general; with: a semicolon"),)
    fields = {f.key: f for s in sections_of("quickstart", posted, problems) for f in s.fields}
    assert fields["trainer.iterations"].error == "Input should be greater than or equal to 1"
    assert fields["trainer.iterations"].value == "0"
    assert {key for key, field in fields.items() if field.error} == {"trainer.iterations", "algorithm.preset"}


def posted_form(
    base: dict[str, Any], posted: dict[str, str]
) -> tuple[tuple[FormSection, ...], dict[str, Any]]:
    """The form and the overrides that come of it, as the page makes them."""
    shown, kept = rebase(base, posted)
    sections = form_sections(shown, posted=kept, problems=(), offers={}, original=base)
    return sections, parse_overrides(sections)


def texts(sections: tuple[FormSection, ...]) -> dict[str, str]:
    return {field.key: field.value for section in sections for field in section.fields}


def test_another_preset_replaces_what_was_left_and_keeps_what_was_changed() -> None:
    base = recipe_base("quickstart")
    first = texts(sections_of("quickstart")) | {"rendered_preset": "grpo_pp"}
    sections, overrides = posted_form(
        base, first | {"algorithm.preset": "dapo", "algorithm.clip_high": "0.4", "trainer.iterations": "5"}
    )
    assert overrides == {"algorithm.preset": "dapo", "algorithm.clip_high": "0.4", "trainer.iterations": "5"}
    config = resolve("quickstart", overrides).model_dump(mode="json")["algorithm"]
    assert (config["aggregation"], config["dynamic_sampling"], config["clip_high"]) == (
        "token_mean",
        True,
        0.4,
    )
    shown = texts(sections)
    assert (shown["algorithm.aggregation"], shown["algorithm.filtered_reasons"]) == ("token_mean", "")


def test_a_value_of_the_recipes_preset_can_be_set_under_another() -> None:
    base = recipe_base("quickstart")
    shown = texts(posted_form(base, {"algorithm.preset": "dapo", "rendered_preset": "grpo_pp"})[0])
    again = shown | {"rendered_preset": "dapo", "algorithm.aggregation": "constant_length"}
    _, overrides = posted_form(base, again)
    assert overrides == {"algorithm.preset": "dapo", "algorithm.aggregation": "constant_length"}


def test_going_back_to_the_recipes_preset_changes_nothing() -> None:
    base = recipe_base("quickstart")
    shown = texts(posted_form(base, {"algorithm.preset": "grpo", "rendered_preset": "grpo_pp"})[0])
    _, overrides = posted_form(base, shown | {"rendered_preset": "grpo", "algorithm.preset": "grpo_pp"})
    assert overrides == {}


def test_contradictions_and_inert_settings_are_told_before_a_run_is_made() -> None:
    base = recipe_base("quickstart")
    sections, _ = posted_form(base, {"trainer.minibatches": "1"})
    found = {finding.setting: finding for finding in check(base, sections)}
    assert found["algorithm.clip_high"].severity == "warning"
    assert "one update per batch" in found["algorithm.clip_high"].message
    sections, _ = posted_form(base, {"policy.temperature": "0"})
    assert [(f.severity, f.setting) for f in check(base, sections)] == [("error", "policy.temperature")]


def origins(sections: tuple[FormSection, ...]) -> dict[str, Origin]:
    return {field.key: field.origin for section in sections for field in section.fields if field.origin}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_until_a_person_changes_something_all_differences_are_the_recipes(recipe: str) -> None:
    assert set(origins(sections_of(recipe)).values()) <= {Origin.BASE}


def test_a_preset_s_changes_count_apart_from_those_by_hand() -> None:
    base = recipe_base("quickstart")
    posted = {"algorithm.preset": "dapo", "algorithm.clip_high": "0.4", "trainer.iterations": "5"}
    sections, _ = posted_form(base, posted | {"rendered_preset": "dapo"})
    found = origins(sections)
    by_hand = {key for key, origin in found.items() if origin is Origin.HAND}
    by_preset = {key for key, origin in found.items() if origin is Origin.PRESET}
    assert by_hand == set(posted)
    assert by_preset == {
        f"algorithm.{name}"
        for name in (
            "baseline", "std_normalisation", "aggregation", "filtered_reasons", "filtered_baseline",
            "zero_advantage_groups", "dynamic_sampling", "overlong_buffer",
        )
    }  # fmt: skip
    fields = {field.key: field for section in sections for field in section.fields}
    aggregation = fields["algorithm.aggregation"]
    assert (aggregation.value, aggregation.original) == ("token_mean", "constant_length")
    assert (fields["sandbox.memory_mb"].origin, fields["sandbox.memory_mb"].default) == (Origin.BASE, "512")
    counted = count_differences(found.values(), base="recipe quickstart", preset="dapo", policy="transformer")
    assert {one.origin: one.count for one in counted if one.count} == {
        Origin.HAND: 3, Origin.PRESET: 8, Origin.BASE: len(found) - 11,
    }  # fmt: skip
    assert [(one.label, one.against) for one in counted if one.origin is Origin.PRESET] == [
        ("by preset dapo", "recipe quickstart")
    ]


def test_another_policy_and_what_follows_are_no_changes_by_hand() -> None:
    base = recipe_base("collect")
    shown, kept = rebase(base, {"policy.type": "noop", "name": "noop on tasks"})
    sections = form_sections(
        shown, posted=kept, problems=(), offers={}, original=base, derived={"name": "noop on tasks"}
    )
    found = origins(sections)
    assert (found["name"], found["policy.type"]) == (Origin.FOLLOWS, Origin.HAND)
    assert Origin.POLICY not in found.values(), "the script has no setting of the model"
    shown, kept = rebase(base, {"policy.type": "endpoint"})
    sections = form_sections(shown, posted=kept, problems=(), offers={}, original=base)
    assert origins(sections)["policy.temperature"] == Origin.POLICY


def test_datasets_and_splits_are_offered_with_their_numbers_of_tasks() -> None:
    Dataset.objects.create(name="older", num_tasks=1, splits={"test": 1})
    Dataset.objects.create(name="newer", num_tasks=1234, splits={"train": 1200, "heldout": 34})
    offers = run_offers(resolve("quickstart"), entered={"dataset.name": "newer"})
    both = [("newer", "1,234 tasks: train 1,200, heldout 34"), ("older", "1 task: test 1")]
    assert [(one.value, one.label) for one in offers["dataset.name"]] == both
    assert offers["evaluation.dataset"] == offers["dataset.name"]
    assert [(one.value, one.label) for one in offers["dataset.split"]] == [
        ("train", "1,200 tasks"), ("heldout", "34 tasks"),
    ]  # fmt: skip
    offers = run_offers(
        resolve("quickstart"), entered={"dataset.name": "newer", "evaluation.dataset": "older"}
    )
    assert [one.value for one in offers["evaluation.split"]] == ["test"]
