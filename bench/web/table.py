"""The measurements as one table, each with its bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.web.pages import BAR_MS, CORE

Row = tuple[str, str, str, bool | None]
"""Name of a measurement, its value, its bar, and whether it is held; None without a bar."""
TOKENS = "page: 64K tokens"
MIB_FLAT = 16
"""Growth of the web process over the last nine tenths of the page views that counts as flat."""


def table(results: dict[str, Any]) -> str:
    """Return the measured parts as text."""
    marks = {True: "", False: "MISSED", None: ""}
    rows = [(what, value, bar, marks[held]) for what, value, bar, held in _rows(results)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _rows(results: dict[str, Any]) -> Iterator[Row]:
    yield ("measured", "value", "bar", None)
    if "pages" in results:
        yield from _pages(results["pages"])
    for numbers in results.get("ingest", {}).get("rounds", ()):
        what = f"ingest by {numbers['clients']} run(s) beside 20 readers, steps/s"
        yield (what, f"{numbers['steps_per_s']:,}", "≥ 10,000", numbers["steps_per_s"] >= 10_000)
        yield ("  pages meanwhile, p95 ms", f"{numbers['page_p95_ms']:.0f}", "", None)
    if "delete" in results:
        numbers = results["delete"]
        what = f"deletion of a run of {numbers['steps']:,} steps, s"
        yield (what, f"{numbers['seconds']:.1f}", "< 10", numbers["seconds"] < 10)
        yield ("  batches of another run meanwhile, longest ms", f"{numbers['batch_max_ms']:.0f}", "", None)
        yield ("  pages meanwhile, p95 ms", f"{numbers['page_p95_ms']:.0f}", "", None)
    if "memory" in results:
        sizes = results["memory"]["mib"]
        grown = sizes[-1][1] - sizes[0][1]
        what = f"web process from page view {sizes[0][0]:,} to {sizes[-1][0]:,}, MiB"
        yield (what, f"{sizes[0][1]:.0f} → {sizes[-1][1]:.0f}", f"grows ≤ {MIB_FLAT}", grown <= MIB_FLAT)
    for numbers in results.get("live", {}).get("rounds", ()):
        stage, bar = ("painted", 500) if numbers["tabs"] <= 50 else ("frame", 1_000)
        p95 = numbers[stage].get("p95")
        held = p95 is not None and p95 <= bar
        value = "no update arrived" if p95 is None else f"{p95}"
        yield (f"event to {stage}, {numbers['tabs']} tabs, p95 ms", value, f"≤ {bar}", held)


def _pages(measured: dict[str, Any]) -> Iterator[Row]:
    pages = measured["addresses"]
    for kind in (*CORE, "page", "api"):
        of_kind = {name: numbers for name, numbers in pages.items() if name.startswith(f"{kind}: ")}
        of_kind.pop(TOKENS, None)
        over = sum(numbers["p95_ms"] > BAR_MS for numbers in of_kind.values())
        slowest = max(of_kind, key=lambda name: float(of_kind[name]["p95_ms"]))
        p95 = of_kind[slowest]["p95_ms"]
        what = f"{kind}, slowest of {len(of_kind)}, p95 ms"
        held = over == 0 if kind in CORE else None
        bar = f"≤ {BAR_MS}" if kind in CORE else ""
        yield (what, f"{p95:.0f} ({slowest.partition(': ')[2]}; {over} over {BAR_MS})", bar, held)
    tokens = pages[TOKENS]
    yield ("page of 64K tokens, p95 ms", f"{tokens['p95_ms']:.0f}", "< 1,000", tokens["p95_ms"] < 1_000)
    yield ("page of 64K tokens, KiB", f"{tokens['page_kib']:.0f}", "< 300", tokens["page_kib"] < 300)
