"""Trials of candidates: their tests before and after the change, in fresh sandboxes and shuffled order."""

from __future__ import annotations

import hashlib
import random
import re
import shlex
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from engine.config.curation import CommitCuration
from engine.config.sandbox import SandboxConfig
from engine.datasets.cached_model import CachedModel
from engine.datasets.commits.filters import Candidate
from engine.datasets.commits.languages.base import WORKDIR, Environment, Language, Project, UnsuitableError
from engine.datasets.commits.repositories import Repository, write_tree
from engine.datasets.curation.baseline import sandbox_spec
from engine.datasets.kept_results import KeptResults
from engine.datasets.paths import is_test_path
from engine.errors import DatasetError, HostError, SandboxError
from engine.sandbox.base import Sandbox, SandboxBackend, SandboxSpec
from engine.sandbox.local.images import build_image, image_exists, image_folder
from engine.testing.testrun import TestRun
from engine.threads import in_thread
from engine.tools import printable
from engine.types import TestOutcome

_FAILURES = frozenset({TestOutcome.FAILED, TestOutcome.ERROR})
_PASSING_S, _MAX_PASSING = 5.0, 200
"""Maximum duration, seconds, and number of the tests of a task that pass before and after the change."""
_MAX_COMMAND = 60_000
"""Length from which a test command names files instead of tests, characters."""
_MAX_ADDED = 3
"""Packages that are added because the tests miss a module."""
_MAX_DETAIL, _MAX_MESSAGE = 2000, 300
_VERSION = 5
"""Raise it when trials have other results for the same commit."""


class Trial(BaseModel):
    """Result of one candidate."""

    model_config = ConfigDict(frozen=True)
    reason: str = ""
    """Reason why the candidate does not become a task; empty if it becomes one."""
    detail: str = ""
    """End of the log behind the reason."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    """Tests whose outcomes differed between runs, left out."""
    messages: tuple[str, ...] = ()
    """Failures before the change, ``PATH:LINE: MESSAGE`` with paths relative to the root."""
    relevant_files: tuple[str, ...] = ()
    """Changed files without whose change a test of ``fail_to_pass`` fails, each left out alone."""
    pins: tuple[str, ...] = ()
    image: str = ""
    """Name of the image of the tree before the change, without ``local:``."""
    test_command: str = ""
    seconds: float = 0.0
    """Duration of the trial."""


def kept_trials(
    home: Path,
    repository: Repository,
    language: Language,
    config: CommitCuration,
    sandbox: SandboxConfig,
    seed: int,
) -> KeptResults[Trial]:
    """Return the trials of a repository's candidates by earlier curations, under ``home/commits``.

    Args:
        home: the data folder.
        repository: the repository.
        language: of its code.
        config: settings on which results depend.
        sandbox: limits of the test runs.
        seed: of the order of tests.
    """
    limits = "-".join(map(str, sandbox.limits().values()))
    settings = (
        f"v{_VERSION}-{language.tools}-{config.stability_runs}-{config.test_timeout_s:g}-{limits}-{seed}"
    )
    return KeptResults(home / "commits" / repository.folder.stem / f"trials-{settings}.jsonl", Trial)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Configuration, data folder and sandboxes of all trials of a curation."""

    config: CommitCuration
    home: Path
    backend: SandboxBackend
    sandbox: SandboxConfig
    seed: int
    writer: CachedModel | None = None
    """Model that writes statements, and tests of commits without any."""
    judge: CachedModel | None = None
    """Model that judges statements."""


def hidden_files(candidate: Candidate) -> dict[str, str]:
    """Return path → text of the test files and their support as of the commit."""
    contents = candidate.commit.contents or {}
    return {path: new for path, (_, new) in contents.items() if new is not None and is_test_path(path)}


async def try_candidate(shop: Workshop, repository: Repository, candidate: Candidate) -> Trial:
    """Find the environment of a candidate and run its tests before and after the change.

    Raises:
        HostError: this machine fails.
        PreflightError: the package index cannot be reached.
    """
    staging = Path(tempfile.mkdtemp(prefix=".commit-", dir=shop.home))
    try:
        tree = await in_thread(partial(_write_tree, shop, repository, candidate, staging))
        project = await in_thread(partial(candidate.language.open_project, tree))
        return await _with_environment(shop, repository, candidate, project, tree)
    except UnsuitableError as error:
        return Trial(reason=error.reason, detail=printable(error.detail[-_MAX_DETAIL:]))
    except HostError:
        raise
    except SandboxError as error:
        return Trial(reason="sandbox", detail=str(error)[:_MAX_DETAIL])
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_tree(shop: Workshop, repository: Repository, candidate: Candidate, staging: Path) -> Path:
    (staging / "out").mkdir()
    try:
        return write_tree(repository, candidate.commit.parents[0], staging / "out", shop.home)
    except DatasetError as error:
        raise UnsuitableError("tree", str(error)) from None


async def _with_environment(
    shop: Workshop, repository: Repository, candidate: Candidate, project: Project, tree: Path
) -> Trial:
    """Run the tests in the declared environment; modules that they miss are added to it one by one."""
    added: list[str] = []
    rejected: UnsuitableError | None = None
    while True:
        try:
            environment = await in_thread(partial(project.environment, candidate.commit.date, added))
        except UnsuitableError as error:
            raise rejected or error from None
        image, is_new = await in_thread(partial(_image, shop, repository, candidate, tree, environment))
        try:
            return await _compare(shop, candidate, image, environment)
        except UnsuitableError as error:
            rejected = error
            if error.reason not in ("no_tests_run", "fails_after"):
                raise
            new = [name for name in project.missing_packages(error.detail) if name not in added]
            if is_new:
                shutil.rmtree(image_folder(shop.home, image), ignore_errors=True)
            # Packages that a model names may be anybody's: only the commit's own tests add some.
            if not new or len(added) >= _MAX_ADDED or candidate.written_tests is not None:
                raise
            added.append(new[0])


def _image(
    shop: Workshop, repository: Repository, candidate: Candidate, tree: Path, environment: Environment
) -> tuple[str, bool]:
    """Return the name of the image of the tree before the change, and whether this call built it."""
    content = repr((repository.spec, candidate.commit.sha, environment.key))
    name = f"{repository.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    (shop.home / "images").mkdir(exist_ok=True)
    with FileLock(shop.home / "images" / f".{name}.lock"):
        if image_exists(shop.home, name):
            return name, False
        build_image(
            shop.home,
            name,
            tree,
            workdir=WORKDIR,
            env=environment.variables,
            binds=environment.mounts,
        )
    return name, True


async def _compare(shop: Workshop, candidate: Candidate, image: str, environment: Environment) -> Trial:
    """Run the tests after and before the change, then those that count again, in shuffled order.

    The first two runs, each in a fresh sandbox, choose the tests: all that the change mends, and quick ones
    that pass on both sides.
    """
    files = sorted(candidate.test_paths)
    run = partial(_runs, shop, candidate, image, environment)
    (mended,) = await run([files], fixed=True)
    outcomes_after = {mended.case(test).outcome for test in mended.ids}
    if TestOutcome.PASSED not in outcomes_after:
        reason = "fails_after" if TestOutcome.FAILED in outcomes_after else "no_tests_run"
        raise UnsuitableError(reason, f"{mended.problem}\n{mended.log}")
    (broken,) = await run([files], fixed=False)
    tests = _choose(mended, broken)
    order = random.Random(f"{shop.seed} {candidate.commit.sha}")
    shuffled = [order.sample(tests, len(tests)) for _ in range(2 * (shop.config.stability_runs - 1))]
    after = [mended, *await run(shuffled[::2], fixed=True)]
    before = [broken, *await run(shuffled[1::2], fixed=False)]
    outcomes = {
        test: ({run.case(test).outcome for run in before}, {run.case(test).outcome for run in after})
        for test in tests
    }
    stable = {test: (old, new) for test, (old, new) in outcomes.items() if len(old) == len(new) == 1}
    fail_to_pass = tuple(test for test, (old, _) in stable.items() if old <= _FAILURES)
    if not fail_to_pass:
        raise UnsuitableError("unstable", "\n".join(test for test in outcomes if test not in stable))
    pass_to_pass = tuple(test for test in stable if test not in fail_to_pass)
    relevant = partial(run, [fail_to_pass], fixed=True)
    selected = environment.command([*fail_to_pass, *pass_to_pass])
    messages = partial(_messages, suffixes=candidate.language.suffixes)
    return Trial(
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        unstable=tuple(test for test in outcomes if test not in stable),
        relevant_files=await _relevant_files(sorted(candidate.entities), fail_to_pass, relevant),
        messages=messages(broken.log, besides=messages(mended.log)),
        pins=environment.pins,
        image=image,
        test_command=selected if len(selected) <= _MAX_COMMAND else environment.command(files),
    )


async def _relevant_files(
    paths: Sequence[str], tests: Sequence[str], run: Callable[..., Awaitable[list[TestRun]]]
) -> tuple[str, ...]:
    """Return the paths without whose change a test fails, found by leaving out each alone."""
    relevant = list(paths[: len(paths) == 1])
    for path in paths if len(paths) > 1 else ():
        try:
            (without,) = await run(without=path)
        except UnsuitableError:  # no report, or no end
            relevant.append(path)
        else:
            if any(without.case(test).outcome is not TestOutcome.PASSED for test in tests):
                relevant.append(path)
    return tuple(relevant)


def _choose(mended: TestRun, broken: TestRun) -> list[str]:
    """Return the tests that count. Raises UnsuitableError if the change mends none."""
    passing = [
        test for test in mended.ids if mended.case(test).outcome is TestOutcome.PASSED and "\n" not in test
    ]
    failing = [test for test in passing if broken.case(test).outcome in _FAILURES]
    if not failing:
        missing = any(broken.case(test).outcome is TestOutcome.MISSING for test in passing)
        raise UnsuitableError("collection" if missing else "no_difference", broken.log)
    both = [test for test in passing if broken.case(test).outcome is TestOutcome.PASSED]
    seconds, chosen = 0.0, set(failing)
    for test in sorted(both, key=lambda test: mended.case(test).seconds):
        seconds += mended.case(test).seconds
        if seconds > _PASSING_S or len(chosen) >= len(failing) + _MAX_PASSING:
            break
        chosen.add(test)
    return [test for test in passing if test in chosen]


async def _runs(
    shop: Workshop,
    candidate: Candidate,
    image: str,
    environment: Environment,
    selections: Sequence[Sequence[str]],
    *,
    fixed: bool,
    without: str = "",
) -> list[TestRun]:
    """Run each selection of tests in one fresh sandbox; ``without`` stays unchanged.

    Raises UnsuitableError: a run timed out, or the tests of the changed tree gave no report.
    """
    runs = []
    async with shop.backend.open(_spec(shop, image, candidate, runs=len(selections))) as sandbox:
        await _place(sandbox, candidate, fixed=fixed, without=without)
        for tests in selections:
            run = await environment.run(sandbox, tests, timeout_s=shop.config.test_timeout_s)
            if run.timed_out:
                raise UnsuitableError("timeout", run.log)
            if run.problem and fixed:
                raise UnsuitableError("no_tests_run", f"{run.problem}\n{run.log}")
            if run.signs:
                raise UnsuitableError("runner_changed", "\n".join(run.signs))
            runs.append(run)
    return runs


def _spec(shop: Workshop, image: str, candidate: Candidate, *, runs: int) -> SandboxSpec:
    lifetime = shop.config.test_timeout_s * (runs + 1) + 30
    return sandbox_spec(
        f"local:{image}", shop.sandbox, run_id="curate", name=candidate.commit.sha[:12], lifetime_s=lifetime
    )


async def _place(sandbox: Sandbox, candidate: Candidate, *, fixed: bool, without: str) -> None:
    """Write the commit's test files, and its code where it is to be there, but for one file."""
    for path, text in hidden_files(candidate).items():
        await sandbox.write_file(f"{WORKDIR}/{path}", text.encode())
    if not fixed:
        return
    for path, (_, new) in (candidate.commit.contents or {}).items():
        if candidate.language.is_code(path) and path != without:
            if new is None:
                await sandbox.exec(f"rm -f -- {shlex.quote(path)}", timeout_s=30)
            else:
                await sandbox.write_file(f"{WORKDIR}/{path}", new.encode())


def _messages(log: str, *, suffixes: Sequence[str], besides: Collection[str] = ()) -> tuple[str, ...]:
    """Return the distinct failures of a log, ``PATH:LINE: MESSAGE`` with paths relative to the root."""
    endings = "|".join(map(re.escape, suffixes))
    place = rf"[^\s:]{{1,200}}(?:{endings}):\d{{1,9}}"
    found = re.findall(rf"^(?:{WORKDIR}/)?({place}): (.+)$", log, re.MULTILINE)
    lines = (f"{place}: {message[:_MAX_MESSAGE]}" for place, message in found)
    return tuple(dict.fromkeys(line for line in lines if line not in besides))[:10]
