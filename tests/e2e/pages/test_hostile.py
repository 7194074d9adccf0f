"""Output of models, tools and engines is displayed and never executed, in a real browser."""

from __future__ import annotations

from playwright.sync_api import Dialog, Page, expect

from tests.builders.sandbox_builders import lease, pool
from tests.builders.web.page_builders import Yard, add_iteration, add_live_step, make_yard
from tests.e2e.conftest import aside

HOSTILE = (
    "<script>window.ran=1;alert(1)</script>\"'><img src=x onerror=window.ran=1><svg onload=window.ran=1>"
    '</textarea></template></script><a href="javascript:window.ran=1">x</a>{{7*7}}\u202eevil\u202c'
    "\x1b[31mred\x1b]8;;javascript:window.ran=1\x07link\x1b]8;;\x07\x00 😀"
)
SHORT = "<script>window.ran=1</script>\"'><img src=x onerror=window.ran=1>\u202e"
INJECTED = (
    "main img, main iframe, main object, main embed, main [onerror], main [onload], main [onclick],"
    " main a[href^='javascript:'], main script:not([type='application/json'])"
)


def watch(page: Page) -> list[str]:
    """Dismiss and collect dialogs."""
    seen: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        seen.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    return seen


def assert_nothing_ran(page: Page, dialogs: list[str], name: str) -> None:
    assert page.evaluate("window.ran") is None, name
    assert page.locator(INJECTED).count() == 0, name
    assert dialogs == [], name


def hostile_news(yard: Yard) -> None:
    """Post hostile events of every kind that open pages show."""
    yard.stream.add("run_progress", message=HOSTILE, done=1, total=2)
    yard.stream.add("alert", severity="error", code=HOSTILE[:90], message=HOSTILE)
    broken = lease(7, "failed") | {"name": HOSTILE[:60], "reason": HOSTILE, "failure": HOSTILE[:20]}
    yard.stream.add("sandboxes_changed", records=[broken])
    yard.stream.add("pool_status", **pool(live=1))
    add_live_step(yard, yard.iterations, 1)
    ref = yard.ref(yard.iterations, 0, 0)
    long = (HOSTILE + "x" * 100_000 + "\n") * 3
    yard.stream.step(
        ref, 2, tool=HOSTILE[:40], thought=HOSTILE, response=HOSTILE, observation=long, error=HOSTILE
    )
    yard.post()


def test_hostile_text_is_shown_on_pages_and_never_run(page: Page) -> None:
    yard = aside(make_yard, iterations=2, group_size=2, mark=SHORT)
    aside(hostile_news, yard)
    dialogs = watch(page)
    key = yard.tasks[0].key
    addresses = {
        "run": f"/runs/{yard.run.pk}/",
        "form": "/runs/new/?recipe=quickstart",
        "task": f"/datasets/quickstart/tasks/{key}/",
        "trajectory": f"/runs/{yard.run.pk}/train/0/{key}/0/",
        "live trajectory": f"/runs/{yard.run.pk}/train/{yard.iterations}/{key}/0/",
        "sandboxes": "/sandboxes/",
    }
    for name, address in addresses.items():
        page.goto(address)
        assert_nothing_ran(page, dialogs, name)
    page.goto(addresses["live trajectory"])
    expect(page.locator("#trajectory-steps")).to_contain_text("<script>window.ran=1")


def test_hostile_text_in_live_updates_is_never_run(page: Page) -> None:
    yard = aside(make_yard, iterations=1, group_size=2)
    dialogs = watch(page)
    live = f"/runs/{yard.run.pk}/train/{yard.iterations}/{yard.tasks[0].key}/0/"
    for name, address in (("trajectory", live), ("run", f"/runs/{yard.run.pk}/")):
        page.goto(address)
        expect(page.locator("#live-dot")).to_have_attribute("data-state", "live")
        if name == "trajectory":
            aside(hostile_news, yard)
            expect(page.locator("#trajectory-steps > .step")).to_have_count(3)
        else:
            aside(add_alert, yard)
            expect(page.locator("#run-alerts")).to_contain_text("second <script>")
        assert_nothing_ran(page, dialogs, name)


def add_alert(yard: Yard) -> None:
    add_iteration(yard, yard.iterations + 1)
    yard.stream.add("alert", severity="error", code="b", message=f"second {HOSTILE}")
    yard.post()
