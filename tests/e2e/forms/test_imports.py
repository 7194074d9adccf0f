"""The import form in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from tests.e2e.conftest import aside
from tests.unit.datasets.importers import rows
from webapp.models import Run

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def files() -> Path:
    """The server's import folder with a file of rows."""
    folder = Path(settings.TRAINYARD_HOME) / "imports"
    folder.mkdir(exist_ok=True)
    (folder / "verified.jsonl").write_text(json.dumps(rows.swe_bench()) + "\n")
    return folder


def test_import_form_filled_by_keyboard_starts_a_run(page: Page, files: Path) -> None:
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
