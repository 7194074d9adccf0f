"""CPU time per agent step, without the model and the command.

A scripted policy rolls out against sandboxes in memory, through the real scheduler, loop, parser,
tools and conversation, with all trajectories in flight at once. The bar is 5 ms per step.
Run: ``python -m bench.agent_step [--quick]``; results go to ``bench/results/agent_step.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from bench.harness import store
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.rollout import GroupRequest
from engine.sandbox.base import ExecResult
from tests.fakes.memory_sandbox import MemoryBackend, printed
from tests.rollout_builders import Recorder, TextPolicy, make_row, respond, swe_scheduler

STEPS = 10
BAR_MS = 5.0


async def _output(_command: str) -> ExecResult:
    return printed("a line of output from a test run\n" * 60)


async def measure(trajectories: int, prompt: str) -> dict[str, float | int | str]:
    """Return CPU milliseconds per step at a number of concurrent trajectories."""
    source = "".join(f"def f{n}(a):\n    return a + {n}\n\n\n" for n in range(400))
    turns = [
        respond("file_editor", command="view", path="pkg/m.py", view_range=[100, 160]),
        respond("execute_bash", cmd="python -m pytest -q"),
        respond("search", search_term="f1"),
        respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a + 7\n", new_str="a + 8\n"),
        respond("file_editor", command="undo_edit", path="pkg/m.py"),
    ]
    policy = TextPolicy(lambda context: turns[len(context.steps) % len(turns)])
    recorder = Recorder()
    scheduler = swe_scheduler(
        MemoryBackend({"/testbed/pkg/m.py": source.encode()}, command=_output),
        policy,
        agent=AgentConfig(prompt=prompt, max_steps=STEPS, max_context=400_000),
        sandbox=SandboxConfig(max_live=trajectories, max_starting=trajectories),
        rollout=RolloutConfig(max_concurrent=trajectories),
        observer=recorder,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    request = GroupRequest(row=make_row(), iteration=0, phase="train", size=trajectories)
    (group,) = await scheduler.collect([request])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    steps = sum(len(t.steps) for t in group.trajectories)
    assert steps == trajectories * STEPS
    tokens = sum(len(t.tokens) for t in group.trajectories)
    return {
        "prompt": prompt,
        "trajectories": trajectories,
        "steps": steps,
        "tokens_per_trajectory": tokens // trajectories,
        "cpu_ms_per_step": round(1000 * cpu / steps, 3),
        "wall_s": round(wall, 2),
        "bar_ms": BAR_MS,
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 trajectories instead of 1,000")
    quick = parser.parse_args().quick
    rows = [asyncio.run(measure(100 if quick else 1000, prompt)) for prompt in ("compact_v1", "deepswe_v1")]
    print(f"{'prompt':<12}{'rollouts':>9}{'tokens each':>13}{'CPU ms/step':>13}{'bar':>7}{'wall s':>9}")
    for row in rows:
        print(
            f"{row['prompt']:<12}{row['trajectories']:>9}{row['tokens_per_trajectory']:>13}"
            f"{row['cpu_ms_per_step']:>13}{row['bar_ms']:>7}{row['wall_s']:>9}"
        )
    store("agent_step", rows, quick=quick)


if __name__ == "__main__":
    main()
