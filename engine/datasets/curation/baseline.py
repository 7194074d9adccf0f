"""Baseline of a source's own tests before any fault: stable tests and the lines they execute."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config.curation import CurationConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.paths import is_test_path
from engine.datasets.sources.fetch import Source
from engine.errors import DatasetError
from engine.sandbox.base import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from engine.sandbox.local.images import build_image, image_exists
from engine.testing.testrun import TestRun, driver_command, run_tests
from engine.testing.toolchain import MOUNT
from engine.types import TestOutcome

SLOW_TEST_S = 0.5
"""Maximum duration of a test, seconds; slower tests are left out, so that grading stays fast."""
_TRACE_FACTOR = 6.0
_SELECTION = "/tmp/trainyard-selection"  # noqa: S108  inside the sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A source with its image and its stable tests."""

    source: Source
    image: str
    """Image name, without ``local:``."""
    toolchain: Path
    seconds: Mapping[str, float]
    """Stable test → duration, seconds; in execution order."""
    executed_by: Mapping[str, Mapping[int, tuple[str, ...]]]
    """File → line → stable tests that execute it."""


def sandbox_spec(
    image: str, config: SandboxConfig, *, run_id: str, name: str, lifetime_s: float
) -> SandboxSpec:
    """Return the specification of a sandbox that runs the tests of ``image``."""
    limits = SandboxLimits(
        memory_mb=config.memory_mb,
        processes=config.processes,
        disk_mb=config.disk_mb,
        lifetime_s=lifetime_s,
    )
    return SandboxSpec(image=image, run_id=run_id, name=name, limits=limits)


def image_environment(source: Source) -> dict[str, str]:
    """Return the environment variables of all commands in a source's images; pytest is importable."""
    roots = ["/testbed" if root == "." else f"/testbed/{root}" for root in source.roots]
    return {"PYTHONPATH": ":".join([*roots, MOUNT]), "PYTHONDONTWRITEBYTECODE": "1"}


async def measure_baseline(
    source: Source,
    toolchain: Path,
    config: CurationConfig,
    *,
    home: Path,
    backend: SandboxBackend,
    sandbox: SandboxConfig,
) -> Baseline:
    """Build the source's image, run its tests repeatedly and record the executed lines.

    Raises:
        DatasetError: the source's tests cannot be used; the message has the reason.
    """
    image = await asyncio.to_thread(ensure_image, source, toolchain, home)
    timeout = config.test_timeout_s
    lifetime = timeout * (config.stability_runs + _TRACE_FACTOR + 1)
    spec = sandbox_spec(f"local:{image}", sandbox, run_id="curate", name=source.name, lifetime_s=lifetime)
    async with backend.open(spec) as box:
        # A test file that cannot be imported (a missing extra) must not fail the others.
        arguments = ["--continue-on-collection-errors", *source.tests]
        first = await _run(box, driver_command(arguments, source.roots), timeout, source)
        stable = [
            test
            for test in first.ids
            if first.case(test).outcome is TestOutcome.PASSED and first.case(test).seconds <= SLOW_TEST_S
        ]
        selection = [f"@{_SELECTION}"]
        traced = first
        for number in range(max(1, config.stability_runs - 1)):
            await box.write_file(_SELECTION, "\n".join(stable).encode())
            roots = source.packages if number == 0 else ()
            command = driver_command(selection, source.roots, trace_roots=roots)
            run = await _run(box, command, timeout * (_TRACE_FACTOR if roots else 1), source)
            traced = run if roots else traced
            stable = [test for test in stable if run.case(test).outcome is TestOutcome.PASSED]
    if not stable:
        raise DatasetError(f"source '{source.spec}': no test passes every time within {SLOW_TEST_S} s")
    return Baseline(
        source=source,
        image=image,
        toolchain=toolchain,
        seconds={test: first.case(test).seconds for test in stable},
        executed_by=executed_lines(traced, stable, source.tree),
    )


def image_name(source: Source, toolchain: Path) -> str:
    """Return the name of the intact image of a source, which includes a hash of its content."""
    content = repr((source.spec, source.revision, toolchain.name, sorted(image_environment(source).items())))
    return f"{source.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def ensure_image(source: Source, toolchain: Path, home: Path) -> str:
    """Return the name of the intact image of a source; build it when missing."""
    image = image_name(source, toolchain)
    if not image_exists(home, image):
        environment = image_environment(source)
        build_image(home, image, source.tree, env=environment, binds={MOUNT: str(toolchain)})
    return image


async def _run(box: Sandbox, command: str, timeout_s: float, source: Source) -> TestRun:
    run = await run_tests(box, command, timeout_s=timeout_s)
    if run.problem or not run.ids:
        reason = run.problem or "no tests were collected"
        tail = " ".join(run.log.strip().split("\n")[-2:])[:300]
        raise DatasetError(f"source '{source.spec}' is unusable: {reason} ({tail})")
    return run


def executed_lines(run: TestRun, stable: Sequence[str], tree: Path) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return file → line → stable tests that execute it, from the report of a traced run.

    The report comes from a process that ran untrusted code, so only paths of files in the tree are accepted.
    """
    tree_files = {path.relative_to(tree).as_posix() for path in tree.rglob("*.py") if path.is_file()}
    executed: dict[str, dict[int, list[str]]] = {}
    for test in stable:
        for path, lines in run.lines.get(test, {}).items():
            if path in tree_files and not is_test_path(path):
                for line in lines:
                    executed.setdefault(path, {}).setdefault(line, []).append(test)
    return {path: {line: tuple(tests) for line, tests in lines.items()} for path, lines in executed.items()}
