"""Forms of recipes that need few decisions: their main settings by subject, everything else behind them.

Settings that follow from others (``runs.services.collection.derived_settings``) are entered until a person
changes them.
To add a form: an entry in ``SHORT_FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.config.run import POLICY_TYPE_KEY, parse_run_config, with_overrides
from engine.errors import ConfigError
from engine.reading import parse_json
from webapp.datasets.selectors.defaults import dataset_settings
from webapp.runs.contexts.forms.bases import UNSET, as_text
from webapp.runs.contexts.forms.form import FormField, FormSection, form_sections, parse_overrides
from webapp.runs.services import collection

DERIVED = "rendered_derived"
"""Field of a form with the derived settings that it was rendered with, as JSON."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Settings that belong together for people, by dotted name, with their labels."""

    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ShortForm:
    """Main settings of a recipe."""

    title: str
    subjects: tuple[Subject, ...]
    derives: bool = True
    """Whether settings follow from others: name, tool calls, sandboxes, runs to skip."""


_COLLECT = ShortForm(
    "Collect trajectories",
    (
        Subject(
            "Tasks",
            {
                "dataset.name": "dataset",
                "dataset.split": "split",
                "rollout.group_size": "samples per task",
                "dataset.limit": "number of tasks",
                "collection.start_index": "start index",
            },
        ),
        Subject(
            "Model",
            {
                "policy.type": "kind",
                "policy.checkpoint": "checkpoint",
                "policy.engine": "engine",
                "policy.endpoint": "endpoint",
                "policy.model": "model",
                "policy.source": "trajectories",
                "policy.temperature": "temperature",
                "agent.tool_format": "tool calls",
                "agent.prompt": "prompt",
            },
        ),
        Subject(
            "Limits",
            {
                "rollout.max_concurrent": "concurrency",
                "agent.max_steps": "maximum steps",
                "agent.max_context": "context, tokens",
                "agent.max_response": "response, tokens",
                "agent.rollout_timeout_s": "time limit, seconds",
            },
        ),
        Subject(
            "Spending",
            {
                "policy.input_price": "input price",
                "policy.cached_price": "cached price",
                "policy.output_price": "output price",
                "policy.spend_limit": "spend limit",
            },
        ),
        Subject(
            "Existing results",
            {
                "collection.skip": "skip",
                "collection.skip_runs": "results of runs",
                "collection.infra_retries": "retries after infrastructure failures",
                "collection.retry_temperatures": "retries without submission",
            },
        ),
    ),
)
_VERIFY = ShortForm(
    "Verify trajectories",
    (
        Subject(
            "Trajectories",
            {
                "name": "name",
                "verifier.runs": "runs",
                "verifier.phases": "phases",
                "verifier.follow": "go on with them",
                "verifier.part": "judged part",
            },
        ),
        Subject(
            "Judge",
            {
                "policy.type": "kind",
                "policy.checkpoint": "checkpoint",
                "policy.endpoint": "endpoint",
                "policy.model": "model",
                "verifier.answers": "answers",
                "verifier.max_context": "context, tokens",
                "verifier.parallel": "concurrency",
                "verifier.max_attempts": "attempts",
            },
        ),
        Subject(
            "Spending",
            {
                "policy.input_price": "input price",
                "policy.cached_price": "cached price",
                "policy.output_price": "output price",
                "policy.spend_limit": "spend limit",
            },
        ),
    ),
    derives=False,
)
_VERIFY_BY_TESTS = ShortForm(
    "Verify patches by tests",
    (
        Subject(
            "Patches and tests",
            {
                "name": "name",
                "verifier.runs": "runs",
                "verifier.phases": "phases",
                "verifier.tests": "runs of testing agents",
            },
        ),
        Subject(
            "Limits",
            {
                "verifier.timeout_s": "time limit, seconds",
                "verifier.max_parallel": "concurrency",
                "verifier.max_test_files": "test files",
                "verifier.repeats": "runs on the untouched repository",
                "sandbox.backend": "sandboxes",
            },
        ),
    ),
    derives=False,
)
_TRAIN_JUDGE = ShortForm(
    "Train a judge",
    (
        Subject(
            "Trajectories",
            {
                "name": "name",
                "judgements.on_policy": "runs of the policy",
                "judgements.off_policy": "runs of others",
                "judgements.phases": "phases",
                "judgements.splits": "splits of tasks",
                "judgements.part": "judged part",
                "judgements.per_task": "pairs per task",
                "judgements.extra": "extra pairs",
            },
        ),
        Subject(
            "Training",
            {
                "trainer.start": "model",
                "trainer.epochs": "epochs",
                "trainer.batch_size": "judgements per step",
                "trainer.max_tokens": "context, tokens",
                "trainer.learning_rate": "learning rate",
                "trainer.lora_rank": "LoRA rank",
                "trainer.heldout_share": "held-out tasks",
            },
        ),
    ),
    derives=False,
)
_WRITE_TESTS = replace(_COLLECT, title="Write reproduction tests")
SHORT_FORMS: Mapping[str, ShortForm] = {
    "collect": _COLLECT,
    "quickstart-collect": _COLLECT,
    "verify": _VERIFY,
    "train-judge": _TRAIN_JUDGE,
    "verify-by-tests": _VERIFY_BY_TESTS,
    "write-tests": _WRITE_TESTS,
}


def arrange(
    sections: tuple[FormSection, ...], form: ShortForm
) -> tuple[tuple[FormSection, ...], tuple[FormSection, ...]]:
    """Return the sections of a short form, and those of all other settings."""
    fields = {field.key: field for section in sections for field in section.fields}
    subjects = tuple(_subject(subject, fields) for subject in form.subjects)
    taken = {field.key for subject in subjects for field in subject.fields}
    others = (
        replace(section, fields=left, open=any(field.changed or field.error for field in left))
        for section in sections
        if (left := tuple(field for field in section.fields if field.key not in taken))
    )
    return tuple(subject for subject in subjects if subject.fields), tuple(others)


def _subject(subject: Subject, fields: Mapping[str, FormField]) -> FormSection:
    chosen = tuple(
        replace(fields[key], name=label) for key, label in subject.settings.items() if key in fields
    )
    return FormSection(subject.name, "", chosen, open=True)


Follow = Callable[[Mapping[str, Any], Mapping[str, str]], dict[str, str]]
"""Derived settings of a configuration with what was posted, as texts."""


def derive(
    base: Mapping[str, Any], posted: Mapping[str, str], follow: Follow
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what was posted with derived settings entered, and the derived settings.

    Args:
        base: the configuration that the form is compared with.
        posted: texts by dotted setting; those that were derived when the form was rendered are derived anew.
        follow: ``from_collection`` or ``from_dataset``.
    """
    before, derived = _rendered(posted), follow(base, posted)
    texts = {key: text.replace("\r\n", "\n") for key, text in posted.items()}
    left = {key for key in before if texts.get(key) == before[key]}
    left |= {key for key in derived.keys() - before.keys() if texts.get(key, "") in ("", _text(base, key))}
    kept = {key: text for key, text in posted.items() if key not in left}
    return derived | kept, derived


def _text(base: Mapping[str, Any], key: str) -> str:
    """Return a setting of a configuration as its input holds it; empty where there is none."""
    section, _, name = key.rpartition(".")
    value = (base[section] if section else base).get(name)
    return "" if value == UNSET else as_text(value)


def _rendered(posted: Mapping[str, str]) -> Mapping[str, object]:
    try:
        rendered = parse_json(posted.get(DERIVED, ""))
    except ValueError:
        return {}
    return rendered if isinstance(rendered, dict) else {}


def from_dataset(base: Mapping[str, Any], posted: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of sandboxes and gradings that follow from the dataset."""
    values = dataset_settings(base, posted.get("dataset.name", _text(base, "dataset.name")))
    return {key: as_text(value) for key, value in values.items()}


def from_collection(base: Mapping[str, Any], posted: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a collection that follow from its dataset, its model and earlier runs."""

    def text(key: str) -> str:
        return posted.get(key, _text(base, key))

    model = text("policy.model") or text("policy.checkpoint") or text(POLICY_TYPE_KEY)
    by_endpoint = text(POLICY_TYPE_KEY) == "endpoint"
    values = collection.derived_settings(dataset=text("dataset.name"), model=model, by_endpoint=by_endpoint)
    if text("collection.skip") != "none":
        values["collection.skip_runs"] = _earlier_runs(base, posted)
    return {key: as_text(value) for key, value in values.items()}


def _earlier_runs(base: Mapping[str, Any], posted: Mapping[str, str]) -> list[str]:
    """Return the collections that the form's one may continue; nothing while the form has errors."""
    others = {key: text for key, text in posted.items() if not key.startswith("collection.")}
    overrides = parse_overrides(form_sections(base, posted=others, problems=(), offers={}))
    try:
        config = parse_run_config(with_overrides(base, overrides))
    except ConfigError:
        return []
    return collection.earlier_runs(config.model_dump(mode="json"))
