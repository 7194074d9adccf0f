"""The form of a new run: every setting appears, and only differences become overrides."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.config.recipes import RECIPES, resolve
from engine.errors import ConfigError, Problem
from webapp.models import Dataset
from webapp.runs.contexts.config_view import describe
from webapp.runs.contexts.forms.bases import rebase, recipe_base
from webapp.runs.contexts.forms.differences import Origin
from webapp.runs.contexts.forms.form import FormSection, check, form_sections, parse_overrides
from webapp.runs.contexts.forms.offers import run_offers

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


def test_the_form_of_every_recipe_has_all_settings_and_changes_none() -> None:
    for recipe in RECIPES:
        sections = sections_of(recipe)
        fields = [field for section in sections for field in section.fields]
        assert {field.key for field in fields} == leaves(recipe_base(recipe)) - {
            "kind", "data", "method", "recipe",
        }  # fmt: skip
        assert all(field.help or field.name == "type" for field in fields)
        assert set(origins(sections).values()) <= {Origin.BASE}, "no difference is by hand"
        posted = {field.key: field.value.replace("\n", "\r\n") for field in fields}
        assert parse_overrides(sections_of(recipe, posted)) == {}


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


def test_provider_options_are_entered_and_shown_as_json() -> None:
    entered = '{"top_k": 20, "chat_template_kwargs": {"enable_thinking": false}}'
    chosen = {"policy.type": "endpoint", "policy.endpoint": "lab", "policy.model": "m"}
    base, posted = rebase(recipe_base("quickstart-evaluate"), {**chosen, "policy.extra_body": entered})
    sections = form_sections(base, posted=posted, problems=(), offers={})
    overrides = parse_overrides(sections)
    assert overrides["policy.extra_body"] == json.loads(entered)
    config = resolve("quickstart-evaluate", {**chosen, **overrides}).model_dump(mode="json")
    shown = {setting.key: setting for section in describe(config, "evaluate") for setting in section.settings}
    assert shown["policy.extra_body"].value == entered
    assert "chat_template_kwargs" in shown["policy.extra_body"].help


@pytest.mark.parametrize("entered", ["top_k=20", "[1]", '{"model": "other"}'])
def test_wrong_provider_options_are_told_beside_their_field(entered: str) -> None:
    chosen = {"policy.type": "endpoint", "policy.endpoint": "lab", "policy.model": "m"}
    base, posted = rebase(recipe_base("quickstart-evaluate"), {**chosen, "policy.extra_body": entered})
    overrides = parse_overrides(form_sections(base, posted=posted, problems=(), offers={}))
    with pytest.raises(ConfigError) as caught:
        resolve("quickstart-evaluate", {**chosen, **overrides})
    sections = form_sections(base, posted=posted, problems=caught.value.problems, offers={})
    assert [field.key for section in sections for field in section.fields if field.error] == [
        "policy.extra_body"
    ]


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
