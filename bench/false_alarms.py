"""False alarms of grading: honest patches graded as tampered, and solutions that fail; both must be 0.

Patches: the gold patch with an unrelated edit (it alone is not audited), the edit alone, and wrong
patches as for test strength. Tasks: the quickstart's; of three other packages, made by injecting faults; the
example images where ``DOCKER_HOST`` names a daemon and ``make docker-examples`` built them. Tasks of our own
datasets are graded by the driver's report, every fourth also by a script, like rows of SWE-bench. All are
audited as in evaluations: passing patches are run with every variant of mutated tests.

Every grading is a line of ``HOME/false_alarms.jsonl``: a stopped bench resumes from there, with the datasets
already made, and repeats gradings that had a problem or used other code. Run:
``python -m bench.false_alarms [--quick] [--home FOLDER] [--sets NAME …] [--tasks N]``; results go to
``bench/results/false_alarms.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.harness import store
from bench.honest_patches import HonestPatch, honest_patches
from engine.config.curation import CurationConfig
from engine.config.importing import ImportConfig
from engine.config.recipes import quickstart
from engine.config.rollout import GradingConfig
from engine.config.sandbox import DockerConfig, SandboxConfig
from engine.datasets.curation.curate import curate
from engine.datasets.importers.formats.evalscript import make_script
from engine.datasets.importers.run import import_dataset
from engine.datasets.store import dataset_path, load_dataset
from engine.grading.counterfactual.store import FileReferences
from engine.grading.execution import RunExecutor
from engine.grading.grader import Grader
from engine.patches.apply import touched
from engine.sandbox.base import SandboxBackend, SandboxSpec
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.local.backend import LocalBackend
from engine.testing.toolchain import MOUNT
from engine.types import TaskRow, TestOutcome, Verdict

PACKAGES = ("more-itertools==10.8.0", "sqlparse==0.5.3", "markdown==3.8")
"""Source distributions of the tasks of the set ``packages``; none is the quickstart's."""
PACKAGE_TASKS = 200
SCRIPTED_EVERY = 4
SETS = ("quickstart", "packages", "images")
ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / ".trainyard" / "examples"
GRADERS = ("engine/grading", "engine/testing", "engine/patches")
"""Folders of the grading code; gradings by other versions of it are repeated."""
FORMATS = {"r2e-gym": "r2e_gym.jsonl", "swe-bench": "swe_bench.jsonl"}
SANDBOX = SandboxConfig(memory_mb=512)
GRADING = GradingConfig(timeout_s=250.0, max_parallel=2, reuse_verdicts=False)
PYTEST = f"PYTHONPATH=$PYTHONPATH:{MOUNT} python3 -m pytest -rA -p no:cacheprovider"


@dataclass(frozen=True, slots=True)
class Subject:
    """A task with the sandbox backend that grades it."""

    group: str
    """Name of its set, and the way of grading."""
    row: TaskRow
    backend: SandboxBackend
    references: FileReferences
    scripted: bool = False
    """Grade the task by a script, not by the driver's report."""


async def subjects(
    home: Path, names: Iterable[str], tasks: int, scripted_every: int
) -> AsyncIterator[Subject]:
    """Yield up to ``tasks`` tasks of each set, made if missing; some also as graded by a script."""
    local = LocalBackend(home)
    for name in names:
        if name == "images":
            for subject in example_images(home):
                yield subject
            continue
        rows = await _curated(home, name, local)
        references = FileReferences(dataset_path(home, f"false-alarms-{name}"))
        for number, row in enumerate(rows[:tasks]):
            yield Subject(f"{name}, driver", row, local, references)
            if number % scripted_every:
                continue
            as_script = replace(row, task=replace(row.task, id=f"{row.task.id}-script"))
            yield Subject(f"{name}, script", as_script, local, references, scripted=True)


async def _curated(home: Path, name: str, backend: SandboxBackend) -> list[TaskRow]:
    config = quickstart.dataset().curation.model_copy(update={"output": f"false-alarms-{name}"})
    if dataset_path(home, config.output).exists():
        return list(load_dataset(home, config.output).rows)
    if name == "packages":
        sources = tuple(f"pip:{package}" for package in PACKAGES)
        config = CurationConfig(
            sources=sources,
            output=config.output,
            train_tasks=PACKAGE_TASKS,
            heldout_tasks=0,
            test_timeout_s=250.0,
        )
    dataset = await curate(
        config,
        home=home,
        backend=backend,
        sandbox=SANDBOX,
        progress=lambda text, done, wanted, **_: print(f"  {text}: {done} of {wanted}", flush=True),
    )
    return list(dataset.rows)


async def _scripted(subject: Subject) -> TaskRow:
    """Return a task graded by a script's log, with the tests that pass in the log."""
    row = subject.row
    answer = row.answer
    files = sorted({test.partition("::")[0] for test in (*answer.fail_to_pass, *answer.pass_to_pass)})
    script = make_script(
        test_patch="", test=[f"{PYTEST} {' '.join(files)}"], workdir=row.task.workdir, base_commit=""
    )
    row = replace(row, answer=replace(answer, test_command=script, log_parser="parse_log_pytest"))
    runs = RunExecutor(backend=subject.backend, config=GRADING, sandbox=SANDBOX, run_id="bench")
    run = await runs.execute(row, answer.gold_patch, timeout_s=GRADING.timeout_s)
    passed = {test.test_id for test in run.judgement.tests if test.outcome is TestOutcome.PASSED}
    failing, passing = (
        tuple(test for test in tests if test in passed)
        for tests in (answer.fail_to_pass, answer.pass_to_pass)
    )
    return replace(row, answer=replace(row.answer, fail_to_pass=failing, pass_to_pass=passing))


def example_images(home: Path) -> list[Subject]:
    """Return the tasks of the example images; empty without a daemon or without built images."""
    host = os.environ.get("DOCKER_HOST", "")
    if not host or not (EXAMPLES / "images.json").exists():
        print("no example images: DOCKER_HOST is not set, or `make docker-examples` has not built them")
        return []
    backend = DockerBackend(DockerConfig(host=host), home)
    examples = []
    for layout, rows in FORMATS.items():
        name = f"false-alarms-{layout}"
        config = {"format": layout, "output": name, "source": str(EXAMPLES / rows)}
        import_dataset(ImportConfig.model_validate(config), home=home)
        references = FileReferences(dataset_path(home, name))
        examples += [
            Subject(f"images, {layout}", row, backend, references) for row in load_dataset(home, name).rows
        ]
    return examples


class Bench:
    """Gradings of honest patches, each stored when it is done.

    Args:
        home: the data folder.
        workers: maximum number of concurrent gradings.
    """

    def __init__(self, home: Path, workers: int) -> None:
        self._path = home / "false_alarms.jsonl"
        self._permits = asyncio.Semaphore(workers)
        self._graders = graders()
        self.left_out: list[str] = []
        """Tasks of scripts whose logs name no failing test: published parsers end names at white space."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.found = {
            (row["group"], row["task"], row["patch"]): row
            for row in map(json.loads, lines)
            if row.get("graders") == self._graders
        }

    async def grade(self, subject: Subject) -> None:
        """Grade a task's honest patches that have no grading without a problem yet."""
        async with self._permits:
            if subject.scripted:
                subject = replace(subject, row=await _scripted(subject))
            if not subject.row.answer.fail_to_pass:
                name = (subject.group, subject.row.task.instance_id)
                self.left_out.append(" ".join(name))
                self.found = {key: entry for key, entry in self.found.items() if key[:2] != name}
                return
            for honest in honest_patches(subject.row, await _files(subject)):
                key = (subject.group, subject.row.task.instance_id, honest.name)
                if key not in self.found or self.found[key]["problem"]:
                    self.found[key] = dict(zip(("group", "task", "patch"), key, strict=True))
                    self.found[key].update(await _graded(subject, honest), graders=self._graders)
                    self._keep(self.found[key])

    def _keep(self, found: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        if found["problem"]:
            print(" ".join(found[name] for name in ("problem", "group", "task", "patch", "detail"))[:300])


def graders() -> str:
    """Return a hash of the grading code."""
    digest = hashlib.sha256()
    for folder in GRADERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


async def _files(subject: Subject) -> dict[str, Any]:
    """Return the task's versions of the files that the gold patch changes."""
    task = subject.row.task
    spec = SandboxSpec(image=task.image, workdir=task.workdir, run_id="bench", name=task.instance_id)
    async with subject.backend.open(spec) as box:
        return await box.fetch_files(touched(subject.row.answer.gold_patch))


async def _graded(subject: Subject, honest: HonestPatch) -> dict[str, Any]:
    grader = Grader(
        backend=subject.backend, config=GRADING, sandbox=SANDBOX, run_id="bench", store=subject.references
    )
    grade = await grader.grade(subject.row, honest.patch, evaluation=True)
    problem = ""
    if grade.verdict is Verdict.TAMPERED:
        problem = "called tampered"
    elif honest.solves and grade.verdict is not Verdict.PASSED:
        problem = "solution not passed"
    elif grade.verdict is Verdict.INFRA_ERROR:
        problem = "not graded"
    return {
        "problem": problem,
        "verdict": grade.verdict,
        "counterfactual": grade.counterfactual,
        "runs": grade.extra_runs + 1,
        "seconds": round(grade.seconds, 2),
        "detail": grade.detail[:2000],
        **({"patch_text": honest.patch, "findings": [str(hit) for hit in grade.findings]} if problem else {}),
        **({"log": grade.log[-4000:]} if problem else {}),
    }


def summary(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts by group, and every grading with a problem."""
    rows = list(found)
    groups: dict[str, Any] = {}
    for name in sorted({row["group"] for row in rows}):
        of_group = [row for row in rows if row["group"] == name]
        checked = Counter(str(row["counterfactual"]) for row in of_group if row["verdict"] == Verdict.PASSED)
        groups[name] = {
            "tasks": len({row["task"] for row in of_group}),
            "gradings": len(of_group),
            "verdicts": dict(sorted(Counter(row["verdict"] for row in of_group).items())),
            "counterfactual_of_passed": dict(sorted(checked.items())),
            "runs": {name: dict(sorted(counts.items())) for name, counts in sorted(_runs(of_group).items())},
            "problems": dict(sorted(Counter(row["problem"] for row in of_group if row["problem"]).items())),
        }
    return {"groups": groups, "problems": [row for row in rows if row["problem"]]}


def _runs(found: Iterable[dict[str, Any]]) -> dict[str, Counter[int]]:
    """Return verdict → number of runs of the tests → number of gradings."""
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for row in found:
        counts[row["verdict"]][row["runs"]] += 1
    return counts


def show(result: dict[str, Any]) -> None:
    """Print the counts and the problems."""
    print(f"left out: {', '.join(result['left_out']) or 'none'}")
    print(f"sets without tasks: {', '.join(result['sets_without_tasks']) or 'none'}")
    for name, group in result["groups"].items():
        print(f"{name:<24}{group['tasks']:>5} tasks {group['gradings']:>6} gradings  {group['verdicts']}")
        print(f"{'':<24}passed: {group['counterfactual_of_passed']}; problems: {group['problems'] or 'none'}")
        print(f"{'':<24}runs of the tests: {group['runs']}")
    for row in result["problems"]:
        print(f"{row['problem']}: {row['group']} {row['task']} {row['patch']}: {row['detail'][:300]}")


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Grade what has not been graded yet and return the summary."""
    bench = Bench(options.home, options.workers)
    chosen = [
        subject
        async for subject in subjects(options.home, options.sets, options.tasks, options.scripted_every)
    ]
    tasks = [asyncio.create_task(bench.grade(subject)) for subject in chosen]
    for count, task in enumerate(asyncio.as_completed(tasks), start=1):
        await task
        if count % 10 == 0:
            print(f"  {count} of {len(tasks)} rows", flush=True)
    graded = {subject.group.partition(",")[0] for subject in chosen}
    return {
        **summary(bench.found.values()),
        "left_out": sorted(bench.left_out),
        "sets_without_tasks": sorted(set(options.sets) - graded),
    }


def main() -> None:
    """Grade, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three tasks of each set; only print")
    parser.add_argument("--home", type=Path, default=Path(".trainyard"), help="data folder")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--tasks", type=int, default=PACKAGE_TASKS, help="tasks of each set at most")
    parser.add_argument(
        "--scripted-every",
        type=int,
        default=SCRIPTED_EVERY,
        help="every Nth task is graded by a script too, which runs whole suites: minutes for some",
    )
    parser.add_argument("--workers", type=int, default=1, help="maximum number of concurrent gradings")
    options = parser.parse_args()
    if options.quick:
        options.tasks = 3
    options.home.mkdir(parents=True, exist_ok=True)
    result = asyncio.run(measure(options))
    show(result)
    store("false_alarms", result, quick=options.quick)


if __name__ == "__main__":
    main()
