"""Pages of collections in each state, in a real browser: they fit, in both themes and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.builders.event_builders import ref
from tests.builders.web_builders import post
from tests.e2e.conftest import aside
from tests.unit.webapp.test_collection_pages import begun, going, made, stopped
from webapp.models import Run

pytestmark = [pytest.mark.e2e]


def evaluating() -> Run:
    """An evaluation of which one of two tasks has ended."""
    run, claim, stream = going(made("quickstart-evaluate", **{"rollout.group_size": 2}))
    for task, rewards in {"a": (1.0, 0.0), "b": (1.0,)}.items():
        for index, reward in enumerate(rewards):
            stream.trajectory(ref(0, task, index, phase="eval:heldout"), reward=reward)
    post(claim, stream, 2)
    return run


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1280), ("light", 390)])
def test_the_states_fit(page: Page, server: str, screenshots: Path, theme: str, width: int) -> None:
    page.context.add_cookies([{"name": "theme", "value": theme, "url": server}])
    page.set_viewport_size({"width": width, "height": 900})
    shown = {
        "draft": (aside(made), "start the run"),
        "waiting": (aside(begun, aside(made))[0], "The first rollouts appear here"),
        "going": (aside(going, aside(made))[0], "12"),
        "spent": (aside(stopped, aside(made), stopped_by="spend_limit"), "Stopped at its spend limit"),
        "evaluating": (aside(evaluating), "95 %"),
    }
    for name, (run, text) in shown.items():
        page.goto(f"/runs/{run.pk}/")
        expect(page.locator("#run-header")).to_contain_text(text)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} at {width} px"
        page.screenshot(path=screenshots / f"collection-{name}-{width}-{theme}.png", full_page=True)
    page.goto("/runs/new/?recipe=collect&dataset.name=tasks")
    expect(page.get_by_role("heading", name="Collect trajectories")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"form at {width} px"
