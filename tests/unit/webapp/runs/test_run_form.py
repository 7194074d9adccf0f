"""Form of a new run: it shows every setting and turns only differences into overrides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from engine.config.presets import PRESETS
from engine.config.recipes import RECIPES, resolve
from engine.errors import ConfigError, Problem
from tests.builders.web.html_regions import form_values
from tests.builders.web.web_builders import make_user
from webapp.core.permissions import Role
from webapp.models import Dataset, Run, Task
from webapp.runs.contexts.config_view import describe
from webapp.runs.contexts.forms.form import FormSection, Offer, edited, form_sections
from webapp.runs.contexts.forms.offers import run_offers
from webapp.runs.services.drafts import Draft, Origin, draft, policy_types, setting_texts

pytestmark = pytest.mark.django_db


def posted_form(
    recipe: str, posted: dict[str, str] | None = None, *, before: dict[str, Any] | None = None
) -> Draft:
    """Return the draft of an edited form that was rendered with the overrides ``before``."""
    overrides = edited(draft(recipe=recipe, overrides=before), posted or {})
    return draft(recipe=recipe, overrides=overrides)


def leaves(data: dict[str, Any], prefix: str = "") -> set[str]:
    keys: set[str] = set()
    for key, value in data.items():
        section = isinstance(value, dict) and value
        keys |= leaves(value, f"{prefix}{key}.") if section else {f"{prefix}{key}"}
    return keys


def test_the_form_of_every_recipe_has_all_settings_and_changes_none() -> None:
    for recipe in RECIPES:
        made = draft(recipe=recipe)
        sections = form_sections(made)
        fields = [field for section in sections for field in section.fields]
        assert {field.key for field in fields} == leaves(dict(made.original)) - {
            "kind", "data", "method", "recipe",
        }  # fmt: skip
        assert all(field.help or field.name == "type" for field in fields)
        assert set(origins(sections).values()) <= {Origin.BASE, Origin.FOLLOWS}, "no difference is by hand"
        posted = {field.key: field.value.replace("\n", "\r\n") for field in fields}
        assert posted_form(recipe, posted).overrides == {}


def test_differences_become_overrides_that_resolve() -> None:
    posted = {
        "name": "mine", "trainer.iterations": "5", "agent.step_reminder": "true", "dataset.limit": "3",
        "algorithm.filtered_reasons": "max_steps\r\nenv_timeout\r\n", "algorithm.clip_high": "0.3",
    }  # fmt: skip
    overrides = posted_form("quickstart", posted).overrides
    assert set(overrides) == set(posted)
    config = resolve("quickstart", overrides).model_dump(mode="json")
    assert (config["name"], config["trainer"]["iterations"], config["dataset"]["limit"]) == ("mine", 5, 3)
    assert config["agent"]["step_reminder"] is True
    assert config["algorithm"]["filtered_reasons"] == ["max_steps", "env_timeout"]


def test_an_emptied_optional_setting_becomes_none() -> None:
    before = {"dataset.limit": 7}
    assert posted_form("quickstart", {"dataset.limit": ""}, before=before).overrides == {}
    run = Run(config=draft(recipe="quickstart", overrides=before).data)
    assert edited(draft(parent=run), {"dataset.limit": ""}) == {"dataset.limit": None}


def test_errors_are_shown_in_full_beside_their_fields() -> None:
    posted = {"trainer.iterations": "0", "algorithm.preset": "a; trainer.seed: b"}
    with pytest.raises(ConfigError) as caught:
        resolve("quickstart", posted)
    problems = caught.value.problems + (Problem("something general; with: a semicolon"),)
    sections = form_sections(posted_form("quickstart", posted), problems=problems)
    fields = {field.key: field for section in sections for field in section.fields}
    assert fields["trainer.iterations"].error == "Input should be greater than or equal to 1"
    assert fields["trainer.iterations"].value == "0"
    assert {key for key, field in fields.items() if field.error} == {"trainer.iterations", "algorithm.preset"}


def texts(made: Draft) -> dict[str, str]:
    return {field.key: field.value for section in form_sections(made) for field in section.fields}


def test_provider_options_are_entered_and_shown_as_json() -> None:
    entered = '{"top_k": 20, "chat_template_kwargs": {"enable_thinking": false}}'
    chosen = {"policy.type": "endpoint", "policy.endpoint": "lab", "policy.model": "m"}
    overrides = posted_form("quickstart-evaluate", {"policy.extra_body": entered}, before=chosen).overrides
    assert overrides["policy.extra_body"] == json.loads(entered)
    config = resolve("quickstart-evaluate", {**chosen, **overrides}).model_dump(mode="json")
    shown = {setting.key: setting for section in describe(config, "evaluate") for setting in section.settings}
    assert shown["policy.extra_body"].value == entered
    assert "chat_template_kwargs" in shown["policy.extra_body"].help


@pytest.mark.parametrize("entered", ["top_k=20", "[1]", '{"model": "other"}'])
def test_invalid_provider_options_are_reported_beside_their_field(entered: str) -> None:
    chosen = {"policy.type": "endpoint", "policy.endpoint": "lab", "policy.model": "m"}
    made = posted_form("quickstart-evaluate", {"policy.extra_body": entered}, before=chosen)
    with pytest.raises(ConfigError) as caught:
        made.resolved()
    sections = form_sections(made, problems=caught.value.problems)
    assert [field.key for section in sections for field in section.fields if field.error] == [
        "policy.extra_body"
    ]


def test_preset_change_replaces_defaults_and_keeps_edited_settings() -> None:
    shown = texts(draft(recipe="quickstart"))
    changes = {"algorithm.preset": "dapo", "algorithm.clip_high": "0.4", "trainer.iterations": "5"}
    made = posted_form("quickstart", shown | changes)
    assert made.overrides == changes
    config = resolve("quickstart", made.overrides).model_dump(mode="json")["algorithm"]
    assert (config["aggregation"], config["dynamic_sampling"], config["clip_high"]) == (
        "token_mean",
        True,
        0.4,
    )
    shown = texts(made)
    assert (shown["algorithm.aggregation"], shown["algorithm.filtered_reasons"]) == ("token_mean", "")
    assert posted_form("quickstart", shown, before=changes).overrides == changes


def test_reselecting_the_recipes_preset_creates_no_overrides() -> None:
    grpo = posted_form("quickstart", {"algorithm.preset": "grpo"})
    back = texts(grpo) | {"algorithm.preset": "grpo_pp"}
    assert posted_form("quickstart", back, before=dict(grpo.overrides)).overrides == {}


def test_contradictory_and_inert_settings_are_reported_for_a_draft() -> None:
    made = posted_form("quickstart", {"trainer.minibatches": "1"})
    by_setting = {finding.setting: finding for finding in made.findings()}
    assert by_setting["algorithm.clip_high"].severity == "warning"
    assert "one update per batch" in by_setting["algorithm.clip_high"].message
    findings = posted_form("quickstart", {"policy.temperature": "0"}).findings()
    assert [(f.severity, f.setting) for f in findings] == [("error", "policy.temperature")]


def origins(sections: tuple[FormSection, ...]) -> dict[str, Origin]:
    return {field.key: field.origin for section in sections for field in section.fields if field.origin}


def test_datasets_and_splits_are_offered_with_task_counts() -> None:
    Dataset.objects.create(name="older", num_tasks=1, splits={"test": 1})
    Dataset.objects.create(name="newer", num_tasks=1234, splits={"train": 1200, "heldout": 34})
    offers = run_offers(draft(recipe="quickstart", overrides={"dataset.name": "newer"}))
    expected = [("newer", "1,234 tasks: train 1,200, heldout 34"), ("older", "1 task: test 1")]
    assert [(offer.value, offer.label) for offer in offers["dataset.name"]] == expected
    assert offers["evaluation.dataset"] == offers["dataset.name"]
    assert [(offer.value, offer.label) for offer in offers["dataset.split"]] == [
        ("train", "1,200 tasks"), ("heldout", "34 tasks"),
    ]  # fmt: skip
    offers = run_offers(
        draft(recipe="quickstart", overrides={"dataset.name": "newer", "evaluation.dataset": "older"})
    )
    assert [offer.value for offer in offers["evaluation.split"]] == ["test"]


HOSTILE = json.dumps(
    {
        "overrides": {"a": {"b": 1}, "name.x": [], "policy.type": [1]},
        "follows": {"sandbox.kubernetes.namespace": 1, "x": 2},
    }
)


@pytest.mark.parametrize("rendered", ["", "[", "[1]", '{"overrides": []}', HOSTILE])
def test_form_survives_a_tampered_hidden_field(client: Client, rendered: str) -> None:
    client.force_login(make_user("olga", Role.OPERATOR))
    posted = {"recipe": "quickstart", "rendered": rendered, "trainer.iterations": "5", "then": "check"}
    answer = client.post("/runs/new/", posted)
    assert answer.status_code == 200
    assert answer.context["rendered"].count('"trainer.iterations": "5"') == 1


def test_explicit_recipe_preset_replaces_the_section_and_survives_the_form() -> None:
    named = {"algorithm.preset": "grpo_pp"}
    own = draft(recipe="quickstart").resolved().model_dump()["algorithm"]
    plain = draft(recipe="quickstart", overrides=named).resolved().model_dump()["algorithm"]
    assert plain == resolve("quickstart", named).model_dump()["algorithm"] != own
    shown = texts(draft(recipe="quickstart", overrides=named))
    assert posted_form("quickstart", shown, before=named).overrides == named


@pytest.mark.parametrize("recipe", RECIPES)
def test_drafts_equal_the_configuration_resolved_by_the_engine(recipe: str) -> None:
    original = draft(recipe=recipe)
    choices: list[dict[str, Any]] = [{}, {"name": "other"}]
    if "algorithm" in original.original:
        choices += [{"algorithm.preset": preset} for preset in PRESETS]
    choices += [{key: kind} for key, kinds in policy_types(original.model).items() for kind in kinds]
    for overrides in choices:
        made = draft(recipe=recipe, overrides=overrides)
        try:
            expected = resolve(recipe, {**made.follows, **overrides})
        except ConfigError:
            continue
        assert made.resolved() == expected
        shown = dict(setting_texts(expected))
        assert {key: made.text(key) for key in shown} == shown


def test_interdependent_settings_can_be_changed_together(client: Client) -> None:
    client.force_login(make_user("olga", Role.OPERATOR))
    single = {"algorithm.preset": "reinforce_pp", "rollout.group_size": 1}
    config = draft(recipe="quickstart", overrides=single).resolved().model_dump(mode="json")
    parent = Run.objects.create(recipe="quickstart", kind="train", config=config)
    both = {"algorithm.preset": "grpo_pp", "rollout.group_size": 8}
    assert draft(parent=parent, overrides=both).resolved().model_dump()["rollout"]["group_size"] == 8
    form = {"clone": str(parent.pk), "then": "check", "algorithm.preset": "grpo_pp"}
    answer = client.post("/runs/new/", form)
    assert answer.status_code == 200
    assert "rollout.group_size" in {finding.setting for finding in answer.context["findings"]}


def test_derived_settings_of_a_rendered_form_are_not_user_changes(client: Client) -> None:
    client.force_login(make_user("olga", Role.OPERATOR))
    late = Dataset.objects.create(name="late")
    shown = client.get("/runs/new/?recipe=quickstart&dataset.name=late").content.decode()
    Task.objects.create(dataset=late, key="a", instance_id="a", split="train", image="example.org/image:1")
    answer = client.post("/runs/new/", form_values(shown, "run-form") | {"then": "check"})
    fields = {field.key: field for section in answer.context["sections"] for field in section.fields}
    assert (fields["sandbox.backend"].value, fields["sandbox.backend"].origin) == ("docker", Origin.FOLLOWS)


@pytest.mark.parametrize("value", ["\ud800", "a\x00b", json.loads("[" * 200 + "]" * 200)])
def test_values_that_the_database_cannot_store_are_refused(client: Client, value: Any) -> None:
    client.force_login(make_user("olga", Role.OPERATOR))
    with pytest.raises(ConfigError, match="cannot be stored"):
        draft(recipe="quickstart", overrides={"dataset.name": value})
    rendered = json.dumps({"overrides": {"dataset.name": value}})
    answer = client.post("/runs/new/", {"recipe": "quickstart", "rendered": rendered, "then": "check"})
    assert answer.status_code == 200


def test_dataset_in_a_whole_section_override_determines_derived_settings() -> None:
    dataset = Dataset.objects.create(name="published")
    Task.objects.create(dataset=dataset, key="a", instance_id="a", split="train", image="example.org/image:1")
    section = draft(recipe="quickstart").original["dataset"] | {"name": "published"}
    assert draft(recipe="quickstart", overrides={"dataset": section}).follows["sandbox.backend"] == "docker"


@pytest.mark.parametrize("recipe", ["commits-dataset", "quickstart-dataset"])
def test_the_form_shows_the_settings_of_a_curations_model(recipe: str) -> None:
    chosen = {"curation.writer.type": "endpoint", "curation.writer.endpoint": "lab"}
    made = posted_form(recipe, {"curation.writer.type": "endpoint"})
    assert made.missing == ("curation.writer.endpoint", "curation.writer.model")
    fields = {field.key: field for section in form_sections(made) for field in section.fields}
    assert fields["curation.writer.type"].choices == (Offer("none"), Offer("transformer"), Offer("endpoint"))
    assert fields["curation.writer.type"].replaces
    assert fields["curation.writer.endpoint"].value == ""
    assert "curation.judge.model" not in fields
    back = posted_form(recipe, {"curation.writer.type": "none"}, before=chosen)
    assert back.overrides == {}
