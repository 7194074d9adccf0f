"""Yield of tasks from commits: ``python -m bench.swegen [--quick] [--commits N] REPOSITORY…``.

Curates each repository (a folder or an address) alone, without any model, and prints commits by stage, the
shares of eligible commits (small real changes with tests, each once) that build and become tasks, and
minutes a task.
Bars: at least 78 % build, at least 40 % become tasks, at most 3 minutes a task. Minutes are those of one
worker, over all trials; two run at once. The data folder is kept: a stopped bench continues.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness import store
from engine.config.curation import CommitCuration
from engine.config.sandbox import SandboxConfig
from engine.datasets.commits.make import make_commit_tasks
from engine.datasets.commits.trials import Workshop
from engine.datasets.funnel import NoTasksError
from engine.errors import DatasetError
from engine.sandbox.local.backend import LocalBackend

_BUILT, _ELIGIBLE = "builds", "new"


async def measure(repository: str, *, home: Path, commits: int) -> dict[str, Any]:
    """Curate a repository and return its funnel."""
    name = Path(repository.rstrip("/")).name
    config = CommitCuration(
        repositories=(repository,), output=f"swegen-{name}", max_commits=commits, train_tasks=10_000
    )
    sandbox = SandboxConfig()
    backend = LocalBackend(home)
    shop = Workshop(config=config, home=home, backend=backend, sandbox=sandbox, seed=0)
    try:
        record = (await make_commit_tasks(shop, lambda *_, **__: None)).provenance
    except NoTasksError as error:
        record = error.record
    except DatasetError as error:
        return {"repository": repository, "problem": str(error)}
    return {"repository": repository, **_counts(record)}


def _counts(record: Mapping[str, Any]) -> dict[str, Any]:
    funnel = {stage["stage"]: stage["reached"] for stage in record["funnel"]}
    lost = {reason: number for stage in record["funnel"] for reason, number in stage["lost"].items()}
    return {"funnel": funnel, "lost": lost, "seconds": record["trial_seconds"]}


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "problem" in row:
        return f"{row['repository'][-40:]:40} {row['problem']}"
    funnel = row["funnel"]
    eligible, tasks = funnel[_ELIGIBLE], funnel["stated"]
    built, valid = (f"{n / eligible:6.0%}" if eligible else "     –" for n in (funnel[_BUILT], tasks))
    minutes = f"{row['seconds'] / 60 / tasks:8.2f}" if tasks else "       –"
    return (
        f"{row['repository'][-40:]:40} {funnel['commits']:7} {eligible:8} {built} {tasks:5} {valid} {minutes}"
    )


def total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum over all repositories that could be used."""
    usable = [row for row in rows if "problem" not in row]
    stages = usable[0]["funnel"] if usable else {}
    return {
        "repository": "all",
        "funnel": {stage: sum(row["funnel"][stage] for row in usable) for stage in stages},
        "seconds": sum(row["seconds"] for row in usable),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repositories", nargs="*", metavar="REPOSITORY")
    parser.add_argument("--quick", action="store_true", help="the newest 60 commits; nothing is stored")
    parser.add_argument("--commits", type=int, default=300, help="newest commits of each repository")
    parser.add_argument("--home", type=Path, default=Path("build/swegen"), help="data folder, kept")
    options = parser.parse_args()
    if not options.repositories:
        print("no repository is named: nothing to measure")
        return
    options.home.mkdir(parents=True, exist_ok=True)
    commits = 60 if options.quick else options.commits
    print(f"{'repository':40} commits eligible builds tasks  valid  min/task", flush=True)
    rows = []
    for repository in options.repositories:
        rows.append(asyncio.run(measure(repository, home=options.home.resolve(), commits=commits)))
        print(line(rows[-1]), flush=True)
    if not any("funnel" in row for row in rows):
        return
    rows.append(total(rows))
    print(line(rows[-1]))
    print(", ".join(f"{stage} {count}" for stage, count in rows[-1]["funnel"].items()))
    store("swegen", {"load": os.getloadavg(), "rows": rows}, quick=options.quick)


if __name__ == "__main__":
    main()
