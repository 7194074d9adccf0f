"""Kinds of runs: each configuration has its own, and stored ones are converted, there and back."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.operations import RunSQL

from engine.config.recipes import RECIPES, resolve
from engine.config.run import parse_run_config
from engine.errors import ConfigError
from engine.types import RunKind
from webapp.models import Dataset, Run
from webapp.services.run import runs

KINDS = {
    "quickstart-dataset": RunKind.CURATE,
    "validate-dataset": RunKind.VALIDATE,
    "import-dataset": RunKind.IMPORT,
    "quickstart": RunKind.TRAIN,
    "quickstart-improve": RunKind.IMPROVE,
}


def test_every_configuration_is_told_by_its_kind_alone() -> None:
    for recipe in RECIPES:
        config = resolve(recipe)
        assert parse_run_config(config.model_dump(mode="json")) == config
    assert {recipe: resolve(recipe).kind for recipe in KINDS} == KINDS
    validation = resolve("validate-dataset").model_dump(mode="json")
    with pytest.raises(ConfigError) as refused:
        parse_run_config(validation | {"kind": "curate"})
    assert {problem.setting for problem in refused.value.problems} >= {"validation", "dataset", "curation"}


@pytest.mark.parametrize(
    ("config", "setting", "mention"),
    [
        ({"kind": "cook", "name": "n"}, "kind", "'validate', 'import'"),
        ({"name": "n"}, "kind", "missing setting"),
        (
            {"kind": "rollout", "name": "n", "dataset": {"name": "d"}, "policy": {"type": "sage"}},
            "policy.type",
            "'oracle'",
        ),
    ],
)
def test_an_unknown_kind_is_refused_by_the_name_of_its_setting(
    config: dict[str, Any], setting: str, mention: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config(config)
    (problem,) = refused.value.problems
    assert problem.setting == setting
    assert mention in problem.message


@pytest.mark.django_db
def test_the_migration_converts_stored_runs_there_and_back() -> None:
    Dataset.objects.create(name="quickstart")
    made = {recipe: runs.create(recipe=recipe) for recipe in KINDS}
    newer = stored(made)
    assert {recipe: kind for recipe, (kind, _) in newer.items()} == KINDS
    migration = import_module("webapp.migrations.0012_run_kinds").Migration
    (convert,) = (operation for operation in migration.operations if isinstance(operation, RunSQL))
    execute(convert.reverse_sql)
    older = stored(made)
    assert {kind for kind, _ in older.values()} == {RunKind.CURATE, RunKind.TRAIN, RunKind.IMPROVE}
    for kind, config in older.values():
        assert config["kind"] == kind
    execute(convert.sql)
    assert stored(made) == newer


def stored(made: dict[str, Run]) -> dict[str, tuple[str, dict[str, Any]]]:
    rows = Run.objects.in_bulk([run.pk for run in made.values()])
    return {recipe: (rows[run.pk].kind, rows[run.pk].config) for recipe, run in made.items()}


def execute(sql: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
