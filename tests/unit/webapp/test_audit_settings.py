"""Migration of stored runs whose settings of audits were a section."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.db import connection

from engine.config.recipes import resolve
from engine.config.run import parse_run_config
from tests.builders.web_builders import make_run
from webapp.models import Run


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("recipe", "mode", "kept"),
    [
        ("quickstart", "off", "off"),
        ("quickstart", "always", "always"),
        ("validate-dataset", "always", "sample"),
    ],
)
def test_stored_runs_keep_the_mode_of_their_audits(recipe: str, mode: str, kept: str) -> None:
    settings = {"dataset.name": "d"} if recipe == "validate-dataset" else {}
    config: dict[str, Any] = resolve(recipe, settings).model_dump(mode="json")
    newer = {**config, "grading": {**config["grading"], "counterfactual": kept}}
    older = {
        **config,
        "grading": {**config["grading"], "counterfactual": {"mode": mode, "prove": "first_use"}},
    }
    runs = [make_run(), make_run()]
    for run, stored in zip(runs, (older, newer), strict=True):
        Run.objects.filter(pk=run.pk).update(kind=config["kind"], config=stored)
    with connection.cursor() as cursor:
        cursor.execute(import_module("webapp.migrations.0044_audit_outcomes").CONFIGURE)
    assert [Run.objects.get(pk=run.pk).config for run in runs] == [newer, newer]
    assert parse_run_config(newer).model_dump(mode="json") == newer
