"""Forms of recipes that need few decisions: their main settings by subject, everything else behind them.

To add one: an entry in ``SHORT_FORMS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from webapp.contexts.run_form import FormField, FormSection


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
                "agent.max_steps": "steps",
                "agent.max_context": "context",
                "agent.max_response": "response",
                "agent.rollout_timeout_s": "time",
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
SHORT_FORMS: Mapping[str, ShortForm] = {"collect": _COLLECT}


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
