"""First rollouts of a collection: an early stop with the reason and the relevant setting."""

from __future__ import annotations

import pytest

from engine.config.policies import EndpointPolicyConfig, PolicyConfig, TransformerPolicyConfig
from engine.config.rollout import AgentConfig
from engine.errors import EarlyStopError
from engine.orchestrator.collection.first_rollouts import FirstRollouts
from engine.tools.schemas import SWE_TOOLS
from engine.types import Step, TerminationReason, ToolCall, Trajectory
from tests.builders.rollout_builders import make_key

ERROR = "no tool call was found in the response"
BARE = 'I look.\n{"name": "execute_bash", "arguments": {"cmd": "ls"}}'


def step(response: str, *, call: ToolCall | None = None, index: int = 0) -> Step:
    return Step(
        index=index, thought="", response=response, call=call, observation="", error="" if call else ERROR
    )


def ended(termination: TerminationReason, *responses: str, called: bool = False) -> Trajectory:
    steps = [step(response, index=index) for index, response in enumerate(responses)]
    if called:
        steps.append(step("", call=ToolCall(name="finish", arguments={}), index=len(steps)))
    return Trajectory(key=make_key(), steps=tuple(steps), termination=termination)


def watch(count: int = 3, **agent: object) -> FirstRollouts:
    return FirstRollouts(count, AgentConfig.model_validate(agent), SWE_TOOLS)


def stopped(first: FirstRollouts, trajectory: Trajectory, after: int = 3) -> str:
    """Return the reason of the early stop at the ``after``-th rollout."""
    for _ in range(after - 1):
        first.add(trajectory)
    with pytest.raises(EarlyStopError) as reason:
        first.add(trajectory)
    return str(reason.value)


def test_stop_reason_quotes_calls_in_another_format_and_the_setting() -> None:
    reason = stopped(watch(), ended(TerminationReason.MAX_STEPS, "hm", BARE))
    assert reason.startswith("the first 3 rollouts all ended by max_steps (3), and none of their 6 responses")
    assert (
        f'\'{{"name": "execute_bash", "arguments": {{"cmd": "ls"}}}}\' and was answered with \'{ERROR}\''
        in reason
    )
    assert "agent.tool_format is 'xml': set it to the format that the model was trained with" in reason
    native = stopped(watch(tool_format="native"), ended(TerminationReason.MAX_STEPS, BARE))
    assert "--enable-auto-tool-choice" in native
    assert "agent.tool_format to 'xml'" in native


def test_stop_reason_quotes_prose_and_its_error() -> None:
    reason = stopped(watch(), ended(TerminationReason.MAX_STEPS, "I would look at the code. " * 100))
    assert (
        f"...' and was answered with '{ERROR}'; agent.tool_format is 'xml': check it, agent.prompt" in reason
    )
    assert len(reason) < 600


@pytest.mark.parametrize(
    ("termination", "responses", "words"),
    [
        (TerminationReason.MAX_CONTEXT, (), "before a first response.*agent.max_context \\(65536\\)"),
        (TerminationReason.ROLLOUT_TIMEOUT, (), "agent.rollout_timeout_s \\(1200\\)"),
        (
            TerminationReason.MAX_RESPONSE,
            ("<think>",),
            "cut off before a tool call: raise agent.max_response",
        ),
    ],
)
def test_stop_reason_names_the_limit_that_ended_the_rollouts(
    termination: TerminationReason, responses: tuple[str, ...], words: str
) -> None:
    with pytest.raises(EarlyStopError, match=words):
        watch(1).add(ended(termination, *responses))


@pytest.mark.parametrize(
    ("policy", "is_watched"),
    [
        (TransformerPolicyConfig(checkpoint="fresh:tiny"), False),
        (TransformerPolicyConfig(checkpoint="builtin:quickstart"), True),
        (EndpointPolicyConfig(endpoint="lab", model="fresh:m"), True),
    ],
)
def test_models_with_random_weights_are_not_watched(policy: PolicyConfig, is_watched: bool) -> None:
    watched = FirstRollouts.of(policy, 8, agent=AgentConfig(), tools=SWE_TOOLS)
    assert (watched is not None) == is_watched


def test_one_readable_call_ends_the_watch() -> None:
    first, bad = watch(), ended(TerminationReason.MAX_STEPS, "a")
    first.add(bad)
    first.add(ended(TerminationReason.MAX_STEPS, "a", called=True))
    for _ in range(10):
        first.add(bad)  # raises nothing


def test_lost_rollouts_do_not_count_as_first_rollouts() -> None:
    first = watch()
    for _ in range(5):
        first.add(ended(TerminationReason.MODEL_ERROR))
    assert "the first 3 rollouts" in stopped(first, ended(TerminationReason.MAX_STEPS, "a"))


def test_a_watch_of_zero_rollouts_never_stops_a_run() -> None:
    never = watch(0)
    for _ in range(9):
        never.add(ended(TerminationReason.MAX_STEPS, "a"))  # raises nothing
