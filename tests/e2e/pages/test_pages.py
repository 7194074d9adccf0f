"""Pages in a real browser: live updates, keyboard control, and a stable reading position."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.builders.web.page_builders import add_group, add_iteration, add_live_step, make_yard
from tests.builders.web.web_builders import PASSWORD
from tests.e2e.conftest import aside

pytestmark = [pytest.mark.e2e]


def test_sign_in_redirects_to_the_requested_page(page: Page) -> None:
    page.goto("/")
    page.click("details.user summary")
    page.click("text=Sign out")
    page.goto("/runs/?kind=train")
    assert "/login/?next=" in page.url
    page.fill("#id_username", "ada")
    page.fill("#id_password", "wrong")
    page.click("button[type=submit]")
    expect(page.locator("[role=alert]")).to_contain_text("is incorrect")
    page.fill("#id_password", PASSWORD)
    page.click("button[type=submit]")
    expect(page.locator("h1")).to_have_text("Runs")
    assert page.url.endswith("/runs/?kind=train")


def test_run_page_receives_live_updates(page: Page) -> None:
    yard = aside(make_yard, iterations=2, group_size=2)
    page.goto(f"/runs/{yard.run.pk}/")
    expect(page.locator("#live-dot")).to_have_attribute("data-state", "live")
    expect(page.locator("#charts")).to_have_attribute("data-points", "2")
    expect(page.locator("#run-header dd").first).to_contain_text("2 of 8")
    page.evaluate("window.loaded = 'once'")

    def post() -> None:
        add_iteration(yard, 3)
        yard.stream.add("alert", severity="error", code="collapse", message="reward fell")
        yard.post()

    aside(post)
    expect(page.locator("#charts")).to_have_attribute("data-points", "3")
    expect(page.locator("#run-header dd").first).to_contain_text("3 of 8")
    expect(page.locator("#run-alerts")).to_contain_text("reward fell")
    pill = page.locator("#pill-run-panel")
    expect(pill).to_have_text("2 new")
    assert page.locator("#run-panel tbody tr").count() == 7
    pill.click()
    expect(page.locator("#run-panel tbody tr")).to_have_count(9)
    page.click("nav.tabs >> text=Events")
    expect(page.locator("#run-panel")).to_contain_text("iteration finished")
    page.wait_for_url("**/?tab=events")
    assert page.evaluate("window.loaded") == "once", "the page was never loaded again"
    page.locator("#chart-reward button").click()
    expect(page.locator("#chart-dialog .uplot")).to_be_visible()


_BAND_COLOURS = """() => {
    const rgb = (context, x, y) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
    const chart = document.querySelector("#chart-solve");
    const canvas = chart.querySelector("canvas");
    const x = Math.round(0.6 * canvas.width);
    const drawn = Array.from({ length: canvas.height }, (_, y) => rgb(canvas.getContext("2d"), x, y));
    const probe = new OffscreenCanvas(1, 1).getContext("2d");
    const legend = [...chart.querySelectorAll(".swatch")].map((swatch) => {
        probe.fillStyle = getComputedStyle(swatch).backgroundColor;
        probe.fillRect(0, 0, 1, 1);
        return rgb(probe, 0, 0);
    });
    return { drawn, legend };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_stacked_bands_have_the_colours_of_their_legend(page: Page, scheme: Literal["light", "dark"]) -> None:
    yard = aside(make_yard, iterations=2, group_size=2)
    page.emulate_media(color_scheme=scheme)
    page.goto(f"/runs/{yard.run.pk}/")
    expect(page.locator("#chart-solve .uplot")).to_be_visible()
    bands = page.evaluate(_BAND_COLOURS)
    for colour in bands["legend"]:
        distances = [max(abs(a - b) for a, b in zip(colour, drawn, strict=True)) for drawn in bands["drawn"]]
        assert min(distances) <= 1, colour
        assert sum(distance <= 1 for distance in distances) >= 5, "a band, no edge"


def test_live_updates_keep_the_selection_and_the_reading_position(page: Page) -> None:
    yard = aside(make_yard, iterations=3, group_size=8)
    page.set_viewport_size({"width": 1280, "height": 600})
    page.goto(f"/runs/{yard.run.pk}/train/2/")
    expect(page.locator("#live-dot")).to_have_attribute("data-state", "live")
    row = page.locator("#iteration-body tr[data-key=t-5]").last
    row.scroll_into_view_if_needed()
    before = row.bounding_box()
    page.evaluate(
        "() => { const cell = [...document.querySelectorAll('tr[data-key=t-5]')].pop().cells[2];"
        " const range = document.createRange(); range.selectNodeContents(cell);"
        " getSelection().removeAllRanges(); getSelection().addRange(range); }"
    )
    text = page.evaluate("String(getSelection())")

    def post() -> None:
        add_group(yard, 2, 1, solved=1)
        yard.post()

    page.evaluate(
        "() => { window.update = new Promise(done =>"
        " document.addEventListener('trainyard:live', () => done(true), { once: true })) }"
    )
    aside(post)
    assert page.evaluate("window.update")
    assert page.evaluate("String(getSelection())") == text
    assert row.bounding_box() == before
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#iteration-body section.panel")).to_have_count(3)
    assert page.evaluate("scrollY") > 0


def test_live_updates_can_be_paused_and_resumed(page: Page) -> None:
    yard = aside(make_yard, iterations=1, group_size=2)
    page.goto(f"/runs/{yard.run.pk}/train/{yard.iterations}/{yard.tasks[0].key}/0/")
    dot, steps = page.locator("#live-dot"), page.locator("#trajectory-steps > .step")
    expect(dot).to_have_attribute("data-state", "live")
    page.click("#live-pause")
    expect(dot).to_have_attribute("data-state", "paused")

    def post(index: int) -> None:
        add_live_step(yard, yard.iterations, index)
        yard.post()

    aside(post, 1)
    expect(steps).to_have_count(1)
    page.click("#live-pause")
    expect(steps).to_have_count(2)
    aside(post, 2)
    expect(steps).to_have_count(3)
    expect(page.locator("#trajectory-strip li")).to_have_count(3)


def test_trajectory_page_can_be_controlled_by_keyboard(page: Page) -> None:
    yard = aside(make_yard, iterations=1, group_size=8)
    base = f"/runs/{yard.run.pk}/train/0/{yard.tasks[0].key}"
    page.goto(f"{base}/4/#step-2")
    current = page.locator(".step.current")
    expect(current).to_have_id("step-2")
    page.keyboard.press("j")
    expect(current).to_have_id("step-3")
    assert page.url.endswith("#step-3")
    page.keyboard.press("k")
    page.keyboard.press("k")
    expect(current).to_have_id("step-1")
    page.keyboard.press("t")
    expect(page.locator("details.thought[open]")).to_have_count(7)
    page.keyboard.press("t")
    expect(page.locator("details.thought[open]")).to_have_count(0)
    page.keyboard.press("o")
    expect(page.locator("details.observation[open]")).to_have_count(0)
    page.keyboard.press("o")
    page.keyboard.press("x")
    expect(page.locator("#step-1 details.raw pre")).to_contain_text("<function=file_editor>")
    page.locator("#step-2 [data-show-all]").click()
    expect(page.locator("#step-2 details.observation .cut")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#global-search")).to_be_focused()
    before = page.url
    page.keyboard.type("jjtt")
    assert page.url == before, "keys do nothing while somebody types"
    expect(page.locator("details.thought[open]")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("J")
    page.wait_for_url(f"**{base}/5/")


def test_theme_switch_survives_a_reload(page: Page) -> None:
    page.goto("/")
    page.click("[data-action=theme]")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.click("[data-action=theme]")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_run_form_marks_differences(page: Page) -> None:
    aside(make_yard, iterations=1, group_size=2)
    page.goto("/runs/new/?recipe=quickstart")
    page.fill("[name='name']", "from the browser")
    expect(page.locator(".differences li:visible")).to_have_text(
        [re.compile("1 by hand"), re.compile("by recipe quickstart, from the defaults")]
    )
    page.locator("summary", has_text="algorithm").first.click()
    page.select_option("[name='algorithm.preset']", "grpo")
    expect(page.locator(".differences li:visible")).to_have_count(3)
    expect(page.locator("#form-plan")).to_be_visible()
    page.select_option("[name='algorithm.preset']", "grpo_pp")
    expect(page.locator(".differences li:visible")).to_have_count(2)
    split = page.locator("[name='dataset.split']")
    split.press("ArrowDown")
    expect(page.locator(".chooser [aria-selected=true]")).to_contain_text("train")
    split.fill("typed")
    expect(page.locator(".chooser")).to_contain_text("no match among 1 known")
    split.press("Escape")
    expect(page.locator(".chooser")).to_have_count(0)
    expect(split).to_have_value("typed")
    split.fill("4 task")
    split.press("ArrowDown")
    split.press("Enter")
    expect(split).to_have_value("train")
    page.select_option("#show-settings", "changed")
    expect(page.locator(".setting:visible")).to_have_count(1)
    page.click("text=Save as draft")
    expect(page.locator("h1")).to_contain_text("from the browser")
    expect(page.locator("main")).to_contain_text("draft")


def test_a_long_trajectory_is_readable_and_searchable(page: Page) -> None:
    yard = aside(make_yard, iterations=1, group_size=2)
    ref = yard.ref(0, 0, 7)

    def post() -> None:
        yard.stream.add("trajectory_started", ref=ref, sandbox_id="s")
        text = "\n".join(f"{n:>5}  some output line {n}" for n in range(60))
        for index in range(210):
            yard.stream.step(ref, index, observation=text, tool="execute_bash", arguments={"command": "make"})
        yard.post()

    aside(post)
    page.goto(f"/runs/{yard.run.pk}/train/0/{yard.tasks[0].key}/7/#step-160")
    expect(page.locator("#step-160")).to_be_in_viewport()
    assert page.evaluate("window.find('some output line 57')")
    expect(page.locator("#trajectory-strip li")).to_have_count(210)
    expect(page.locator("#step-160 pre.command")).to_be_in_viewport()
    expect(page.locator("#trajectory-steps > .stub")).to_have_count(0)
    page.keyboard.press("s")
    page.keyboard.type("SOME output line 59")
    page.keyboard.press("Enter")
    expect(page.locator("#found [aria-current]")).to_have_attribute("data-hit", "0")
    page.keyboard.press("Enter")
    expect(page.locator("#step-1.current")).to_be_visible()
    assert page.evaluate("String([...CSS.highlights.get('found')][0])") == "some output line 59"
    page.keyboard.press("Escape")
    page.keyboard.press("w")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-wrap", "on")
    expect(page.locator("#found")).to_contain_text("showing 200 of 210 matches in 210 steps")


def test_two_rollouts_open_by_key_and_their_differences_are_walked(page: Page) -> None:
    yard = aside(make_yard, iterations=1, group_size=4)
    page.goto(f"/runs/{yard.run.pk}/train/0/{yard.tasks[1].key}/")
    page.keyboard.press("c")
    page.wait_for_url("**/trajectories/compare/?*")
    page.select_option("#pair-right", index=3)
    with page.expect_navigation():  # a key before it would be the earlier page's
        page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pair-right option:checked")).to_contain_text("rollout 3")
    differences = page.locator(".pair-row.differs")
    expect(differences).to_have_count(3)
    page.keyboard.press("j")
    expect(differences.first).to_be_focused()
    page.keyboard.press("j")
    expect(differences.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(differences.first).to_be_focused()
