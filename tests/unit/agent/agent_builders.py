"""One rollout of the agent loop in a tiny repository in memory."""

from __future__ import annotations

from functools import partial

from engine.agent.loop import AgentLoop, AgentOutcome
from engine.agent.prompts import load_prompt
from engine.config.rollout import AgentConfig
from engine.config.sandbox import SandboxConfig
from engine.environments.swe import SweEnvironment
from engine.inference.base import Policy, SamplingParams
from engine.sandbox.base import SandboxSpec
from engine.sandbox.pool.pool import SandboxPool
from engine.types import Step
from tests.builders.rollout_builders import SOURCE, PatchGrader, make_key, make_row, respond
from tests.fakes.memory_sandbox import Command, MemoryBackend, silent

LOOK = respond("file_editor", command="view", path="pkg/m.py")
RUN = respond("execute_bash", cmd="true")


async def roll(
    policy: Policy, config: AgentConfig, *, command: Command = silent, deadline_s: float | None = None
) -> tuple[AgentOutcome, list[Step]]:
    """Run one rollout on a tiny repository in memory."""
    backend = MemoryBackend({"/testbed/pkg/m.py": SOURCE.encode()}, command=command)
    sandbox = SandboxPool(backend, SandboxConfig()).open(SandboxSpec(image="local:pkg"))
    environment = SweEnvironment(
        sandbox, agent=config, style="compact", judge=partial(PatchGrader().grade, make_row())
    )
    if deadline_s is not None:
        environment.step_deadline_s = deadline_s
    await environment.reset()
    seen: list[Step] = []
    loop = AgentLoop(
        environment=environment,
        policy=policy,
        prompt=load_prompt(config.prompt, config.tool_format),
        config=config,
        key=make_key(),
        row=make_row(),
        sampling=SamplingParams(),
        seed_of_step=lambda step: step,
        on_step=lambda turn: seen.append(turn.step),
    )
    outcome = await loop.run()
    await environment.close()
    assert list(outcome.steps) == seen
    assert [step.index for step in seen] == list(range(len(seen)))
    return outcome, seen
