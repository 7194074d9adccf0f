"""Pages in a database with long runs and long trajectories: ``python -m bench.pages [--quick]``.

20 runs, one with 2,000 iterations, one trajectory of 500 steps × 400 lines, one with a 200 kB edit. For each
page: milliseconds of the whole response over HTTP from one uvicorn (median and 95th percentile), CPU time of
that process, KiB on the wire and of the page, queries, and milliseconds until the first readable content is
painted in Chromium.
``--serve`` keeps the server running instead and prints its address and a session cookie.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.harness import store
from bench.web.server import cpu_seconds, session_of, use_database, web_server

BATCH = 2_000
READY = """(selector) => {
  window.readable = new Promise((resolve) => {
    const look = () => document.querySelector(selector)
      ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now())))
      : setTimeout(look, 4);
    look();
  });
}"""


def fill(*, iterations: int, steps: int) -> dict[str, tuple[str, str]]:
    """Create the runs; return each page's address and the selector of its first readable content."""
    from tests.builders.web.page_builders import add_iteration, make_yard
    from tests.builders.web.web_builders import launched, make_run

    yard = make_yard(iterations=3, group_size=8)
    for number in range(18):
        other, _ = launched(make_run(**{"name": f"run {number}", "trainer.iterations": 8}))
        other.state = "succeeded"
        other.save()
    run, key = yard.run.pk, yard.tasks[0].key
    long, edit = yard.ref(0, 0, 50), yard.ref(0, 0, 51)
    yard.stream.add("trajectory_started", ref=long, sandbox_id="s")
    text = "\n".join(f"{n:>5}  value_{n} = compute(argument_{n}, other_{n})" for n in range(400))
    for index in range(steps):
        yard.stream.step(
            long, index, tool="execute_bash",
            arguments={"command": f"sed -n '{index},+400p' src/module_{index}.py"},
            observation=text, thought=f"Look at module {index}. " * 20, exit_code=0,
        )  # fmt: skip
    yard.stream.finished(long, steps=steps)
    old = "\n".join(f"def function_{n}(a, b):\n    return a * {n} + b  # {n}\n" for n in range(2_000))
    new = old.replace("a * ", "b * ").replace("# 9", "# nine ")
    yard.stream.add("trajectory_started", ref=edit, sandbox_id="s")
    arguments = {"command": "str_replace", "path": "/testbed/a.py", "old_str": old, "new_str": new}
    yard.stream.step(edit, 0, tool="str_replace_editor", arguments=arguments, observation="ok")
    yard.stream.finished(edit, steps=1)
    yard.post()
    print(f"the edit has {len(old) + len(new):,} characters")
    yard.group_size = 4
    for number in range(4, iterations):
        add_iteration(yard, number, groups=1)
        if len(yard.stream.lines) - yard.posted > BATCH:
            yard.post()
    yard.post()
    base = f"/runs/{run}/train/0/{key}"
    return {
        "run list": ("/runs/", "main tbody tr"),
        "run, many iterations": (f"/runs/{run}/", "#run-panel"),
        "solve map, many iterations": (f"/runs/{run}/?tab=tasks", ".map tbody tr"),
        "iteration": (f"/runs/{run}/train/1/", "#iteration-body table"),
        "group": (f"{base}/", ".group-table"),
        "trajectory, 7 steps": (f"{base}/4/", "#step-0 pre"),
        "trajectory, 500 steps": (f"{base}/50/", "#step-0 pre"),
        "trajectory, 500 steps, last": (f"{base}/50/#step-{steps - 1}", f"#step-{steps - 1} pre"),
        "trajectory, large edit": (f"{base}/51/", "#step-0 .diff .line"),
    }


def measure(client: httpx.Client, address: str, repeats: int, pid: int) -> dict[str, float]:
    """Return the time and size of a page, and its CPU time in web server ``pid``."""
    client.get(address)
    times = []
    before = cpu_seconds(pid)
    for _ in range(repeats):
        began = time.perf_counter()
        response = client.get(address)
        times.append(1000 * (time.perf_counter() - began))
        assert response.status_code == 200, (address, response.status_code)
    times.sort()
    return {
        "p50_ms": round(statistics.median(times), 1),
        "cpu_ms": round(1000 * (cpu_seconds(pid) - before) / repeats, 1),
        "p95_ms": round(times[min(len(times) - 1, round(0.95 * len(times)))], 1),
        "wire_kib": round(response.num_bytes_downloaded / 1024, 1),
        "page_kib": round(len(response.content) / 1024, 1),
    }


def count_queries(address: str) -> int:
    """Return the number of queries of a page."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(HTTP_HOST="localhost")
    client.force_login(User.objects.get(username="bench"))
    client.get(address)
    with CaptureQueriesContext(connection) as captured:
        client.get(address)
    return len(captured)


def paint_times(
    url: str, cookie: str, pages: dict[str, tuple[str, str]], repeats: int
) -> dict[str, dict[str, float]]:
    """Return milliseconds from the navigation to the first readable content in Chromium, median by page."""
    from playwright.sync_api import sync_playwright

    name, _, value = cookie.partition("=")
    painted = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        for title, (address, selector) in pages.items():
            times = []
            for _ in range(repeats + 1):
                context = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
                context.add_cookies([{"name": name, "value": value, "url": url}])
                tab = context.new_page()
                tab.add_init_script(f"({READY})({selector!r})")
                tab.goto(address, wait_until="commit")
                tab.wait_for_selector(selector, timeout=120_000)
                times.append(float(tab.evaluate("window.readable")))
                context.close()
            painted[title] = {"readable_ms": round(statistics.median(times[1:]), 0)}
        browser.close()
    return painted


def main() -> None:
    """Fill, measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of iterations and steps, few repeats")
    parser.add_argument("--serve", action="store_true", help="keep the server running; nothing is measured")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder,
        web_server(Path(folder)) as started,
    ):
        url, environment, pids = started
        use_database(environment)
        from django.db import connections

        began = time.perf_counter()
        pages = fill(iterations=200 if options.quick else 2_000, steps=50 if options.quick else 500)
        print(f"filled in {time.perf_counter() - began:.0f} s")
        cookie = session_of("bench")
        if options.serve:
            print(url, cookie, *(address for address, _ in pages.values()), sep="\n", flush=True)
            time.sleep(3_600)
        results: dict[str, Any] = {}
        with httpx.Client(base_url=url, headers={"Cookie": cookie}, timeout=120) as client:
            for name, (address, _) in pages.items():
                results[name] = measure(client, address, 3 if options.quick else 20, pids["web"])
                results[name]["queries"] = count_queries(address)
        connections.close_all()
        for name, painted in paint_times(url, cookie, pages, 1 if options.quick else 5).items():
            results[name] |= painted
    for name, numbers in results.items():
        print(f"{name:28}", "  ".join(f"{key} {value:g}" for key, value in numbers.items()))
    store("pages", {"pages": results, "load_average": round(os.getloadavg()[0], 1)}, quick=options.quick)


if __name__ == "__main__":
    main()
