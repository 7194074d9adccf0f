"""Small faults that `make test` must detect, and a command that injects them one by one.

    python -m tests.mutants [NAME…] [--workers 2] [--list]

Each fault replaces one text of one file in a copy of the tree. The related tests, a subset of `make test`,
then run until the first failure. A fault that no test detects is *missed*. The exit code is 1 if more than
``TOLERATED`` faults are missed, or if a fault no longer fits its file.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
TOLERATED = 4
_LIMIT_S = 1800
_TEST_LIMIT_S = 300
"""Time limit of one test in seconds; a test that exceeds it has detected the fault."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: ``before``, which occurs once in ``path``, becomes ``after``."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]
    """Folders or files of the tests to run, the most likely to detect the fault first."""


ALGORITHMS = ("tests/unit/algorithms",)
TRAINER = ("tests/unit/trainer",)
ROLLOUT = ("tests/unit/rollout", "tests/unit/orchestrator")
GRADING = ("tests/unit/grading", "tests/integration/grading")
INGESTION = ("tests/integration/ingestion", "tests/unit/webapp")
ACCESS = ("tests/integration/access", "tests/unit/webapp")
WORKERS = ("tests/unit/workers", "tests/integration/runs")
SANDBOX = ("tests/unit/sandbox", "tests/integration/sandboxes")

MUTANTS = (
    # --- algorithms: advantages, objective, weights
    Mutant(
        "leave-one-out-counts-itself",
        "engine/algorithms/advantages.py",
        "return [(total - reward) / (len(own) - 1) for reward in own]",
        "return [total / len(own) for _ in own]",
        ALGORITHMS,
    ),
    Mutant(
        "deviation-of-the-population",
        "engine/algorithms/advantages.py",
        "statistics.stdev(measured)",
        "statistics.pstdev(measured)",
        ALGORITHMS,
    ),
    Mutant(
        "filtered-trajectories-stay-in-the-baseline",
        "engine/algorithms/advantages.py",
        'if reason == INFRASTRUCTURE or (reason and config.filtered_baseline == "drop"):',
        "if reason == INFRASTRUCTURE:",
        ALGORITHMS,
    ),
    Mutant(
        "overlong-penalty-is-a-bonus",
        "engine/algorithms/advantages.py",
        "reward = float(outcome.reward or 0.0) - _overlong(",
        "reward = float(outcome.reward or 0.0) + _overlong(",
        ALGORITHMS,
    ),
    Mutant(
        "clip-bounds-swapped",
        "engine/algorithms/objective.py",
        "low, high = 1.0 - config.clip_low, 1.0 + config.clip_high",
        "low, high = 1.0 - config.clip_high, 1.0 + config.clip_low",
        ALGORITHMS,
    ),
    Mutant(
        "kl-of-the-wrong-direction",
        "engine/algorithms/objective.py",
        "gap = reference_logprobs - logprobs",
        "gap = logprobs - reference_logprobs",
        ALGORITHMS,
    ),
    Mutant(
        "filtered-trajectories-leave-the-denominator",
        "engine/algorithms/weights.py",
        'return member.loss_mask or config.denominator == "all"',
        "return member.loss_mask",
        ALGORITHMS,
    ),
    # --- trainer: samples, rows, schedule, update
    Mutant(
        "logprobs-of-the-wrong-position",
        "engine/trainer/batch.py",
        "positions=sampled - 1,",
        "positions=np.maximum(sampled - 2, 0),",
        TRAINER,
    ),
    Mutant(
        "every-rank-has-the-same-rows",
        "engine/trainer/batch.py",
        "return [rows[rank::data_parallel] for rank in range(data_parallel)]",
        "return [rows[::data_parallel] for _ in range(data_parallel)]",
        TRAINER,
    ),
    Mutant(
        "warm-up-one-short",
        "engine/trainer/schedule.py",
        "return config.learning_rate * (update + 1) / warmup",
        "return config.learning_rate * update / warmup",
        TRAINER,
    ),
    Mutant(
        "gradient-not-clipped",
        "engine/trainer/trainer.py",
        "torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)",
        "torch.nn.utils.clip_grad_norm_(self._parameters, float('inf'))",
        TRAINER,
    ),
    Mutant(
        "shared-prompt-one-token-too-long",
        "engine/trainer/packing.py",
        "return int(differs[0]) if len(differs) else common",
        "return int(differs[0]) + 1 if len(differs) else common",
        TRAINER,
    ),
    Mutant(
        "minibatches-in-order",
        "engine/trainer/learner.py",
        'random.Random(f"{self._seed}/{self.updates}").shuffle(order)',
        'random.Random(f"{self._seed}").shuffle(order)',
        TRAINER,
    ),
    # --- rollout: scheduling, attempts, rewards
    Mutant(
        "interruptions-not-counted",
        "engine/rollout/scheduler.py",
        "self._interruptions += 1",
        "self._interruptions += 0",
        ROLLOUT,
    ),
    Mutant(
        "room-not-returned",
        "engine/rollout/scheduler.py",
        "            room.release()\n",
        "",
        ROLLOUT,
    ),
    Mutant(
        "infrastructure-is-graded",
        "engine/rollout/rollout.py",
        "if self._outcome.termination in INFRASTRUCTURE_REASONS:\n            _log.warning(",
        "if self._outcome.termination is TerminationReason.MODEL_ERROR:\n            _log.warning(",
        ROLLOUT,
    ),
    Mutant(
        "attempts-without-end",
        "engine/rollout/rollout.py",
        "            if decision is not Decision.RETRY:\n                return\n",
        "            if decision is Decision.COUNT:\n                return\n",
        ROLLOUT,
    ),
    Mutant(
        "retry-with-the-first-temperature",
        "engine/rollout/rollout.py",
        "self._sampling = replace(self._sampling, temperature=temperature)",
        "self._sampling = replace(self._sampling)",
        ROLLOUT,
    ),
    Mutant(
        "siblings-from-the-start",
        "engine/rollout/scheduler.py",
        "for index in range(self.first, self.first + self.size):",
        "for index in range(self.size):",
        ROLLOUT,
    ),
    # --- grading: rules, verdicts, audits
    Mutant(
        "a-skipped-test-passes",
        "engine/grading/rules/f2p_p2p.py",
        "if test.outcome is not TestOutcome.PASSED}",
        "if test.outcome not in (TestOutcome.PASSED, TestOutcome.SKIPPED)}",
        GRADING,
    ),
    Mutant(
        "a-timeout-is-kept",
        "engine/grading/grader.py",
        "            if grade.verdict in _OF_THE_MACHINE:",
        "            if grade.verdict is Verdict.INFRA_ERROR:",
        GRADING,
    ),
    Mutant(
        "evaluations-are-sampled",
        "engine/grading/counterfactual/audit.py",
        "        if evaluation:\n            return EVALUATION_DRAWS\n",
        "",
        GRADING,
    ),
    Mutant(
        "one-catch-alerts-nobody",
        "engine/grading/counterfactual/audit.py",
        'if self._mode == "always" or self._caught or row.task.id in marked:',
        'if self._mode == "always":',
        GRADING,
    ),
    Mutant(
        "an-unproven-mutant-counts",
        "engine/grading/counterfactual/proof.py",
        "        if len(kept) == len(chosen):\n",
        "        if kept:\n",
        GRADING,
    ),
    Mutant(
        "gradings-of-lost-sandboxes-never-end",
        "engine/sandbox/failures.py",
        "if len(failures) > retries or failures.count(kind) > policy.retries:",
        "if retries < 0:",
        ("tests/unit/rollout/test_failures.py", *GRADING, *SANDBOX),
    ),
    # --- ingest: order, fences, once
    Mutant(
        "an-ended-run-accepts-events",
        "webapp/ingestion/services/ingest.py",
        "    if run.state not in states.LIVE:\n        raise RunOverError(run)\n",
        "",
        INGESTION,
    ),
    Mutant(
        "an-older-attempt-writes",
        "webapp/ingestion/services/ingest.py",
        "    if epoch < run.epoch:\n        raise StaleEpochError(run.epoch)\n",
        "",
        INGESTION,
    ),
    Mutant(
        "a-gap-is-stored",
        "webapp/ingestion/services/ingest.py",
        "if lines[0].event.seq > run.last_seq + 1:",
        "if lines[0].event.seq > run.last_seq + 2:",
        INGESTION,
    ),
    Mutant(
        "the-store-does-not-look-again",
        "webapp/ingestion/services/ingest.py",
        "    if attempt is not None:\n        _check_open(run, attempt)\n",
        "",
        INGESTION,
    ),
    Mutant(
        "events-after-the-end",
        "webapp/ingestion/services/ingest.py",
        'if event.epoch == epoch and type_ == "run_finished":',
        'if event.epoch == epoch and type_ == "run_started":',
        INGESTION,
    ),
    # --- access: roles, answers, tokens
    Mutant(
        "viewers-may-operate",
        "webapp/accounts/gate.py",
        "return _gate(Role.OPERATOR, view)",
        "return _gate(Role.VIEWER, view)",
        ACCESS,
    ),
    Mutant(
        "inactive-people-come-in",
        "webapp/core/permissions.py",
        "if not isinstance(user, User) or not user.is_active:",
        "if not isinstance(user, User):",
        ACCESS,
    ),
    Mutant(
        "viewers-see-the-oracle",
        "webapp/core/permissions.py",
        "return role.sees_answers or not run.plays_answers",
        "return role.sees_answers or run.plays_answers is not None",
        ACCESS,
    ),
    Mutant(
        "the-lowest-role-counts",
        "webapp/core/permissions.py",
        "next((role for role in reversed(_ORDER) if role in names), None)",
        "next((role for role in _ORDER if role in names), None)",
        ACCESS,
    ),
    Mutant(
        "operators-change-all-runs",
        "webapp/core/permissions.py",
        "return role is Role.ADMIN or (owns and role.includes(Role.OPERATOR))",
        "return role.includes(Role.OPERATOR)",
        ACCESS,
    ),
    # --- workers: reconciling, attempts
    Mutant(
        "killed-after-its-last-events",
        "workers/reconciler.py",
        "        _kill(attempt)\n    _take_last_events(run)\n",
        "        pass\n    _take_last_events(run)\n    if attempt and process is ProcessState.ALIVE:\n"
        "        _kill(attempt)\n",
        WORKERS,
    ),
    Mutant(
        "a-newer-attempt-is-ignored",
        "workers/reconciler.py",
        "if run.epoch != epoch or run.state in states.TERMINAL:",
        "if run.state in states.TERMINAL:",
        WORKERS,
    ),
    Mutant(
        "a-hung-process-lives-on",
        "workers/reconciler.py",
        "ProcessState.ALIVE: HUNG_AFTER,",
        "ProcessState.ALIVE: DISCONNECTED_AFTER,",
        WORKERS,
    ),
    Mutant(
        "one-attempt-too-many",
        "webapp/runs/services/attempts.py",
        "lost.count() + 1 >= MAX_ATTEMPTS",
        "lost.count() + 1 > MAX_ATTEMPTS",
        WORKERS,
    ),
    Mutant(
        "given-up-without-a-fence",
        "webapp/runs/services/attempts.py",
        '        return False\n    Run.objects.filter(pk=run_id).update(epoch=F("epoch") + 1)\n',
        "        return False\n",
        INGESTION,
    ),
    # --- sandboxes: budgets, failures, leftovers
    Mutant(
        "one-sandbox-too-many",
        "engine/sandbox/pool/pool.py",
        "self.starting + self.live >= config.max_live:",
        "self.starting + self.live > config.max_live:",
        SANDBOX,
    ),
    Mutant(
        "lanes-do-not-take-turns",
        "engine/sandbox/pool/fair_queue.py",
        "self._lanes.move_to_end(lane)",
        "self._lanes.move_to_end(lane, last=False)",
        SANDBOX,
    ),
    Mutant(
        "the-deadline-is-no-orphan",
        "engine/sandbox/ledger.py",
        "or time.monotonic() > self.deadline",
        "or time.monotonic() < 0",
        SANDBOX,
    ),
    Mutant(
        "dropped-output-not-counted",
        "engine/sandbox/agent/processes.py",
        "return kept, self.total - len(kept)",
        "return kept, max(0, len(kept) - self.total)",
        SANDBOX,
    ),
)


def read(names: Sequence[str]) -> list[Mutant]:
    """Return the mutants with the given names, or all if there are none; each fits its file.

    Raises:
        SystemExit: a name is unknown, or a text does not occur exactly once.
    """
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    for mutant in chosen:
        count = (ROOT / mutant.path).read_text().count(mutant.before)
        if count != 1:
            raise SystemExit(f"{mutant.name}: its text occurs {count} times in {mutant.path}: choose another")
    return chosen


def copy_tree(target: Path) -> None:
    """Copy all files that git tracks or would add, and link the virtual environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file() and not source.is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    (target / ".venv").symlink_to((ROOT / ".venv").resolve())


def noticed_by(tree: Path, tests: Sequence[str]) -> str:
    """Return the first test that fails in a tree; empty if none fails.

    Raises:
        RuntimeError: pytest could not run the tests.
    """
    present = [path for path in tests if (tree / path).exists()]
    options = ("-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_LIMIT_S}")
    command = [sys.executable, "-m", "pytest", *options, *present]
    try:
        run = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {_LIMIT_S} s"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if run.returncode in (1, 2) and failed:
        return failed[1]
    if run.returncode:
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return ""


def inject(mutant: Mutant, tree: Path) -> str:
    """Inject a fault, return the first test that detects it, and restore the tree."""
    path = tree / mutant.path
    text = path.read_text()
    path.write_text(text.replace(mutant.before, mutant.after))
    try:
        return noticed_by(tree, mutant.tests)
    finally:
        path.write_text(text)


def main() -> int:
    """Inject the faults and print the test that detects each."""
    parser = argparse.ArgumentParser(description="Inject small faults and see which tests notice them.")
    parser.add_argument("names", nargs="*", help="faults to inject; all by default")
    parser.add_argument("--workers", type=int, default=2, help="faults at once")
    parser.add_argument("--list", action="store_true", help="list the faults")
    options = parser.parse_args()
    mutants = read(options.names)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:45} {mutant.path}")
        return 0
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.workers):
            tree = Path(folder) / f"tree-{number}"
            copy_tree(tree)
            trees.put(tree)

        def injected(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                return inject(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(options.workers) as pool:
            for mutant, test in zip(mutants, pool.map(injected, mutants), strict=True):
                missed += not test
                print(f"{mutant.name:45} {test or 'MISSED'}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} noticed")
    return 1 if missed > TOLERATED else 0


if __name__ == "__main__":
    sys.exit(main())
