"""CPU time per agent step, without the model and the command.

A scripted policy, in tokens or in messages with native calls, rolls out against sandboxes in memory, through
the real scheduler, loop, parser, tools and conversation, with all trajectories in flight at once. The bar is
5 ms per step; 1 ms in messages.
Run: ``python -m bench.agent_step [--quick]``; results go to ``bench/results/agent_step.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Literal

from bench.harness import store
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.inference.base import ChatRequest, ChatResponse, Policy, Usage
from engine.inference.scripted.policies import ScriptedPolicy
from engine.rollout import GroupRequest
from engine.sandbox.base import ExecResult
from engine.tools.parser import NativeCall
from engine.tools.rendering import render_response
from engine.types import ToolCall
from tests.builders.rollout_builders import Recorder, TextPolicy, make_row, swe_scheduler
from tests.fakes.memory_sandbox import MemoryBackend, printed

STEPS, LONG_STEPS = 10, 200
BARS_MS = {"tokens": 5.0, "messages": 1.0}

CALLS = [
    ToolCall(name="file_editor", arguments={"command": "view", "path": "pkg/m.py", "view_range": [100, 160]}),
    ToolCall(name="execute_bash", arguments={"cmd": "python -m pytest -q"}),
    ToolCall(name="search", arguments={"search_term": "f1"}),
    ToolCall(
        name="file_editor",
        arguments={
            "command": "str_replace", "path": "pkg/m.py", "old_str": "a + 7\n", "new_str": "a + 8\n",
        },
    ),
    ToolCall(name="file_editor", arguments={"command": "undo_edit", "path": "pkg/m.py"}),
]  # fmt: skip


class Messages(ScriptedPolicy):
    """Chat policy that returns the calls in turn, with thinking and token counts like an endpoint."""

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the next call."""
        call = CALLS[len(request.context.steps) % len(CALLS)]
        native = NativeCall(name=call.name, arguments=json.dumps(call.arguments))
        used = Usage(prompt_tokens=600 * len(request.messages), generated_tokens=60)
        return ChatResponse(content="", thinking="because", calls=(native,), usage=used)


async def output(_command: str) -> ExecResult:
    """Return output like that of a test run."""
    return printed("a line of output from a test run\n" * 60)


async def measure(
    kind: Literal["tokens", "messages"], trajectories: int, prompt: str, *, steps: int = STEPS
) -> dict[str, float | int | str]:
    """Return CPU milliseconds per step at a number of concurrent trajectories."""
    source = "".join(f"def f{n}(a):\n    return a + {n}\n\n\n" for n in range(400))
    policy: Policy = Messages()
    if kind == "tokens":
        turns = [render_response("because", call, "xml") for call in CALLS]
        policy = TextPolicy(lambda context: turns[len(context.steps) % len(turns)])
    recorder = Recorder()
    scheduler = swe_scheduler(
        MemoryBackend({"/testbed/pkg/m.py": source.encode()}, command=output),
        policy,
        agent=AgentConfig(
            prompt=prompt,
            tool_format="xml" if kind == "tokens" else "native",
            max_steps=steps,
            max_context=1_000_000,
        ),
        sandbox=SandboxConfig(max_live=trajectories, max_starting=trajectories),
        rollout=RolloutConfig(max_concurrent=trajectories),
        observer=recorder,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    request = GroupRequest(row=make_row(), iteration=0, phase="train", size=trajectories)
    (group,) = await scheduler.collect([request])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    num_steps = sum(len(t.steps) for t in group.trajectories)
    assert num_steps == trajectories * steps
    characters = sum(len(s.response) + len(s.observation) for t in group.trajectories for s in t.steps)
    return {
        "policy": kind,
        "prompt": prompt,
        "trajectories": trajectories,
        "steps": num_steps,
        "characters_per_trajectory": characters // trajectories,
        "cpu_ms_per_step": round(1000 * cpu / num_steps, 3),
        "wall_s": round(wall, 2),
        "bar_ms": BARS_MS[kind],
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 trajectories instead of 1,000")
    quick = parser.parse_args().quick
    kinds: tuple[Literal["tokens", "messages"], ...] = ("tokens", "messages")
    prompts = ("compact_v1", "deepswe_v1")
    rows = [asyncio.run(measure(kind, 100 if quick else 1000, p)) for kind in kinds for p in prompts]
    # Long trajectories have about 64K tokens of a trained tokenizer each.
    rows += [
        asyncio.run(measure(kind, 10 if quick else 100, "deepswe_v1", steps=LONG_STEPS)) for kind in kinds
    ]
    print(
        f"{'policy':<10}{'prompt':<12}{'rollouts':>9}{'characters each':>17}{'CPU ms/step':>13}{'bar':>7}"
        f"{'wall s':>9}"
    )
    for row in rows:
        print(
            f"{row['policy']:<10}{row['prompt']:<12}{row['trajectories']:>9}"
            f"{row['characters_per_trajectory']:>17}{row['cpu_ms_per_step']:>13}{row['bar_ms']:>7}"
            f"{row['wall_s']:>9}"
        )
    store("agent_step", rows, quick=quick)


if __name__ == "__main__":
    main()
