"""Scheduled rollouts in real sandboxes: scripted policies, tools, cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.inference.base import Policy
from engine.inference.scripted.policies import NoopPolicy, OraclePolicy, ReplayPolicy
from engine.rollout import GroupRequest, RolloutScheduler
from engine.rollout.serialise import write_trajectories
from engine.sandbox.base import SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.pool.pool import SandboxPool
from engine.types import Grade, Group, TaskRow, TerminationReason, Verdict
from tests.builders.rollout_builders import (
    FIXED,
    SOURCE,
    Recorder,
    TextPolicy,
    in_bytes,
    make_row,
    quick_agent,
    respond,
    swe_scheduler,
)

BLOCK = "class Same:\n    def go(self):\n        return 1\n\n\n"
TOOL = "#!/bin/sh\necho old\n"
PATCH = """\
diff --git a/bin/tool b/bin/tool
--- a/bin/tool
+++ b/bin/tool
@@ -1,2 +1,2 @@
 #!/bin/sh
-echo old
+echo new
diff --git a/docs/new file.md b/docs/new file.md
new file mode 100644
--- /dev/null
+++ b/docs/new file.md
@@ -0,0 +1,2 @@
+# New
+	tabbed
diff --git a/pkg/m.py b/pkg/m.py
--- a/pkg/m.py
+++ b/pkg/m.py
@@ -1,2 +1,2 @@
 def f(a):
-    return a - 1
+    return a + 1
@@ -10,3 +10,3 @@
     def go(self):
-        return 1
+        return 2
{blank}
diff --git a/pkg/old.py b/pkg/old.py
deleted file mode 100644
--- a/pkg/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x = 1
""".replace("{blank}", " ")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tree = folder / "tree"
    for name, text in {
        "pkg/m.py": SOURCE + "\n" + BLOCK + BLOCK, "pkg/old.py": "x = 1\n", "bin/tool": TOOL,
    }.items():  # fmt: skip
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "bin/tool").chmod(0o755)
    build_image(folder, "pkg", tree)
    return folder


class SandboxGrader:
    """Grader that applies the patch to a fresh sandbox and runs the changed code there."""

    def __init__(self, backend: SandboxPool) -> None:
        self.backend = backend

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
        check = "from pkg.m import f; assert f(1) == 2"
        async with self.backend.open(SandboxSpec(image=row.task.image)) as sandbox:
            await sandbox.apply_patch(patch)
            result = await sandbox.exec(["python3", "-c", check], timeout_s=30)
        passed = result.exit_code == 0
        return Grade(verdict=Verdict.PASSED if passed else Verdict.FAILED, reward=float(passed))

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> None:
        return None


def scheduler(home: Path, policy: Policy, recorder: Recorder | None = None, **agent: Any) -> RolloutScheduler:
    sandbox = SandboxConfig(memory_mb=256, disk_mb=64, max_live=4, max_starting=2)
    backend = SandboxPool(LocalBackend(home), sandbox)
    return swe_scheduler(
        backend,
        policy,
        agent=quick_agent(**{"max_steps": 12, "prompt": "compact_v1", **agent}),
        sandbox=sandbox,
        rollout=RolloutConfig(max_concurrent=4),
        grader=SandboxGrader(backend),
        seed=0,
        observer=recorder or Recorder(),
    )


async def collect(built: RolloutScheduler, row: TaskRow, size: int = 1) -> Group:
    (group,) = await built.collect([GroupRequest(row=row, iteration=0, phase="train", size=size)])
    return group


async def test_oracle_solves_noop_fails_and_replay_reproduces_a_rollout(home: Path, tmp_path: Path) -> None:
    row = make_row(patch=PATCH)
    group = await collect(scheduler(home, in_bytes(OraclePolicy()), snippet_lines=4), row, size=2)
    for trajectory in group.trajectories:
        assert (trajectory.error, trajectory.reward) == ("", 1.0)
        assert "old mode" not in trajectory.patch
        expected = [line for line in PATCH.split("\n") if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        produced = [
            line
            for line in trajectory.patch.split("\n")
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        assert [line for line in produced if line] == [line for line in expected if line]
    stored = tmp_path / "stored.jsonl"
    write_trajectories(stored, group.trajectories)
    replay = in_bytes(ReplayPolicy.from_file(stored))
    replayed = await collect(scheduler(home, replay, snippet_lines=4), row)
    assert replayed.trajectories[0].patch == group.trajectories[0].patch
    assert replayed.trajectories[0].tokens == group.trajectories[0].tokens

    (idle,) = (await collect(scheduler(home, NoopPolicy()), row)).trajectories
    assert (idle.patch, idle.reward, idle.termination) == ("", 0.0, TerminationReason.SUBMITTED)


async def test_every_tool_works_in_a_real_sandbox(home: Path) -> None:
    turns = [
        respond("file_editor", command="view", path="/testbed"),
        respond("search", search_term="return a"),
        respond("execute_bash", cmd="echo out; echo err >&2; cd pkg && pwd; exit 3"),
        respond("execute_bash", cmd="echo begun; sleep 60"),
        respond("file_editor", command="create", path="a.py", file_text="x\n"),
        respond("file_editor", command="undo_edit", path="a.py"),
        respond("file_editor", command="view", path="/root/x"),
        respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a - 1", new_str="a + 1"),
        respond("submit"),
    ]
    group = await collect(scheduler(home, TextPolicy(turns), command_timeout_s=4.0), make_row())
    (trajectory,) = group.trajectories
    observations = [step.observation for step in trajectory.steps]
    assert observations[0].split("\n")[:3] == ["bin/", "bin/tool", "pkg/"]
    assert observations[1] == "/testbed/pkg/m.py: 1"
    assert observations[2] == "Exit code: 3\nout\nerr\n/testbed/pkg\n"
    assert observations[3].startswith("Exit code: none, the command was stopped after 4 s")
    assert "begun" in observations[3]
    assert observations[4:6] == ["ok", "ok"]
    assert trajectory.steps[6].error
    assert trajectory.patch.count("diff --git") == 1
    assert FIXED.split("\n")[1] in trajectory.patch
    assert trajectory.reward == 1.0
    assert trajectory.timings.sandbox > 0


async def test_cancellation_leaves_no_sandbox(home: Path) -> None:
    recorder = Recorder()
    built = scheduler(home, TextPolicy([respond("execute_bash", cmd="sleep 600")]), recorder)
    task = asyncio.create_task(collect(built, make_row(), size=6))
    async with asyncio.timeout(60):
        while len(recorder.sandboxes) < 4:
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [t.termination for t in recorder.finished] == [TerminationReason.CANCELLED] * 4
    assert list(LocalBackend(home).ledger.entries()) == []
