"""Forms of recipes that need few decisions: their main settings by subject, everything else behind them.

To add a form: an entry in ``SHORT_FORMS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from webapp.runs.contexts.forms.form import FormField, FormSection


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
                "verifier.follow": "follow live runs",
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
)
_TRAIN_JUDGE = ShortForm(
    "Train a judge",
    (
        Subject(
            "Trajectories",
            {
                "name": "name",
                "judgements.on_policy": "runs of the policy",
                "judgements.off_policy": "other runs",
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
)
_REGRADE = ShortForm(
    "Grade again",
    (
        Subject(
            "Patches and rows",
            {
                "name": "name",
                "regrade.runs": "runs",
                "regrade.phases": "phases",
                "regrade.dataset": "dataset with the new tests",
            },
        ),
        Subject(
            "Grading",
            {
                "grading.timeout_s": "time limit, seconds",
                "grading.max_parallel": "concurrency",
                "grading.map_rule": "rule for maps of outcomes",
                "grading.counterfactual": "audits with mutated tests",
                "sandbox.backend": "sandboxes",
            },
        ),
    ),
)
_WRITE_TESTS = replace(_COLLECT, title="Write reproduction tests")
SHORT_FORMS: Mapping[str, ShortForm] = {
    "collect": _COLLECT,
    "quickstart-collect": _COLLECT,
    "verify": _VERIFY,
    "train-judge": _TRAIN_JUDGE,
    "verify-by-tests": _VERIFY_BY_TESTS,
    "write-tests": _WRITE_TESTS,
    "regrade": _REGRADE,
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
