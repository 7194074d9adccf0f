"""The plan beside the form of a new run, in a real browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect

FORM = "/runs/new/?recipe=deepswe-32b"


def test_plan_updates_with_the_form(page: Page) -> None:
    page.goto(f"{FORM}&plan.gpus=64xH100")
    plan = page.locator("#form-plan")
    expect(plan).to_contain_text("fits")
    expect(plan).to_contain_text("64 × H100")
    expect(plan).to_contain_text("512 rollouts")
    page.fill("[name='plan.gpus']", "32xH100")
    page.locator("[name='plan.gpus']").press("Tab")
    expect(plan).to_contain_text("does not fit")
    expect(plan).to_contain_text("The run needs 64 GPUs and there are 32")
    page.fill("[name='plan.gpus']", "9xABACUS")
    page.locator("[name='plan.gpus']").press("Enter")
    expect(plan).to_contain_text("Unknown GPUs '9xABACUS'")
    expect(page.locator("h1")).to_have_text("New run")
    page.fill("[name='plan.gpus']", "")
    page.locator("[name='plan.gpus']").press("Tab")
    expect(plan).to_contain_text("64 × H100")
    assert_an_update_moves_nothing(page)


def test_assumption_can_be_changed_and_reset(page: Page) -> None:
    page.goto(FORM)
    plan = page.locator("#form-plan")
    before = plan.locator("dd").first.inner_text()
    page.click("a[href='#assumptions']")
    page.fill("[name='assume.mfu']", "0.05")
    page.locator("[name='assume.mfu']").press("Tab")
    expect(plan).to_contain_text("1 set by you")
    expect(plan.locator("dd").first).not_to_have_text(before)
    expect(page.locator(".differences [data-origin=hand] .num")).to_have_text("0")
    assert page.evaluate("document.activeElement.closest('.setting') !== null"), "the focus is kept"
    page.locator(".setting", has=page.locator("[name='assume.mfu']")).locator(".reset").click()
    expect(plan.locator("dd").first).to_have_text(before)
    page.fill("[name='assume.mfu']", "7")
    page.locator("[name='assume.mfu']").press("Tab")
    expect(plan).to_contain_text("less than or equal to 1")
    expect(plan.locator("a[href='#s-assume.mfu']")).to_be_visible()


def test_rejected_form_focuses_its_reason(page: Page) -> None:
    tab = page.context.new_page()  # unlike `page`, accepts the console's report of status 422
    tab.goto("/runs/new/?recipe=quickstart")
    tab.get_by_role("button", name="Create and start").click()
    reason = tab.get_by_role("alert").filter(has_text="the dataset 'quickstart' is not here")
    expect(reason).to_be_focused()
    expect(reason).to_be_in_viewport()


def test_recipes_and_settings_are_filtered_by_words(page: Page) -> None:
    page.goto("/runs/new/")
    recipes = page.locator(".recipes li:visible")
    assert recipes.count() > 20
    page.fill("#recipe-filter", "deepswe 14B")
    expect(recipes).to_have_count(1)
    recipes.locator("a").click()
    page.wait_for_url("**recipe=deepswe-14b-filter")
    expect(page.locator(".recipe-choice summary")).to_contain_text("deepswe-14b-filter")
    expect(page.locator(".recipes").first).to_be_hidden()
    page.fill("#setting-filter", "learning rate")
    settings = page.locator(".settings .setting:visible")
    expect(settings.filter(has_text="learning rate").first).to_be_visible()
    assert 0 < settings.count() < 20
    page.press("#setting-filter", "Enter")
    page.fill("#setting-filter", "")
    assert settings.count() > 20
    expect(page.locator("h1")).to_have_text("New run")


def assert_an_update_moves_nothing(page: Page) -> None:
    """Change a field far down the page; check that neither the page nor its controls move."""
    page.evaluate("window.scrollTo(0, 600)")
    start = page.locator("button.primary").bounding_box()
    page.locator("[name='trainer.iterations']").evaluate(
        "field => { field.value = '3'; field.dispatchEvent(new Event('change', { bubbles: true })) }"
    )
    expect(page.locator("#form-plan")).to_contain_text("3 iterations")
    assert page.evaluate("window.scrollY") == 600
    assert page.locator("button.primary").bounding_box() == start
