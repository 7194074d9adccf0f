"""Importing in a real browser: the form fits and starts a run; rows left out are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from tests.e2e.conftest import aside
from tests.unit.datasets.importers import rows
from webapp.models import Dataset, Run

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def files() -> Path:
    """The server's import folder with a file of rows."""
    folder = Path(settings.TRAINYARD_HOME) / "imports"
    folder.mkdir(exist_ok=True)
    (folder / "verified.jsonl").write_text(json.dumps(rows.swe_bench()) + "\n")
    return folder


def imported_dataset() -> Dataset:
    """A dataset as an import leaves it, with rows left out."""
    counts = {"read": 130, "imported": 9, "rejected": 120, "duplicates": 0, "excluded": 1, "ungradable": 2}
    record: dict[str, Any] = {"format": "r2e-gym", "source": "hf:R2E-Gym/R2E-Gym-Subset", "counts": counts}
    record["excluded_by"] = {"decontamination:repository": 1}
    dataset = Dataset.objects.create(
        name="left", num_tasks=9, provenance={"imports": [record]}, splits={"train": 9}
    )
    folder = Path(settings.TRAINYARD_HOME) / "datasets" / "left"
    folder.mkdir(parents=True, exist_ok=True)
    rejects = [
        {
            "row": n,
            "file": "train-00000-of-00009.parquet",
            "field": "parsed_commit_content",
            "reason": "not an object",
        }
        for n in range(120)
    ]
    (folder / "rejects.jsonl").write_text("".join(json.dumps(reject) + "\n" for reject in rejects))
    excluded = {
        "row": 7,
        "instance_id": "sympy__ab",
        "by": "decontamination:repository",
        "detail": "sympy is sympy/sympy",
    }
    (folder / "excluded.jsonl").write_text(json.dumps(excluded) + "\n")
    return dataset


def test_the_form_is_filled_by_keyboard_and_starts_a_run(page: Page, files: Path) -> None:
    page.goto("/datasets/")
    page.get_by_role("link", name="Import a dataset").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Format").select_option("swe-bench")
    page.get_by_label("Name of the dataset").fill("verified")
    page.get_by_label("Source", exact=True).fill("verified.jsonl")
    page.get_by_role("button", name="Start the import").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("import verified")
    run = aside(Run.objects.get)
    assert run.config["importing"]["source"] == str((files / "verified.jsonl").resolve())
    assert run.config["importing"]["decontamination"]["verified_repositories"] is True


def test_rows_left_out_are_paged_and_told_apart(page: Page) -> None:
    aside(imported_dataset)
    page.goto("/datasets/left/")
    page.get_by_role("link", name="Left out", exact=True).click()
    expect(page.locator("[data-cut]")).to_contain_text("showing 1–100 of 120")
    page.get_by_role("link", name="next →").click()
    expect(page.locator("[data-cut]")).to_contain_text("showing 101–120 of 120")
    page.get_by_role("link", name="Excluded").click()
    expect(page.get_by_role("row", name="sympy__ab")).to_contain_text("decontamination:repository")
