"""Plans with default assumptions against the times that others published for their runs.

What a run does (lengths, concurrency, passes) is taken from its publication; how fast hardware is used comes
from the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from engine.config.recipes import resolve
from engine.planning import Assumptions, Basis, RunPlan, parse_hardware, plan_run

TOLERANCE = 0.25
NEMO_RL = "NeMo-RL 0.4, docs/about/performance-summary.md"
IN_TURN = {
    "trainer.launcher": "torchrun",
    "policy.vllm.launcher": "local",
    "policy.vllm.transfer": "ipc",
    "policy.vllm.gpu_memory": 0.55,
    "policy.vllm.cache_share": 1.0,
}
"""Each GPU trains and samples in turn, as verl and NeMo-RL do."""


def math_run(
    model: str, *, gpus: int, tensor_parallel: int, mean: int, spread: float = 0.6
) -> tuple[dict[str, Any], Assumptions]:
    """NeMo-RL's GRPO on OpenMathInstruct-2: 64 × 32 answers of one turn, at most 4,096 tokens; both the old
    and the reference policy's log-probabilities."""
    settings = {
        **IN_TURN,
        "policy.checkpoint": model,
        "policy.vllm.replicas": gpus // tensor_parallel,
        "policy.vllm.tensor_parallel": tensor_parallel,
        "policy.max_batch": 2048,
        "trainer.data_parallel": gpus,
        "trainer.context_parallel": 1,
        "trainer.tokens_per_microbatch": 4096,
        "trainer.tasks_per_iteration": 64,
        "rollout.group_size": 32,
        "rollout.max_concurrent": 2048,
        "sandbox.max_live": 2048,
        "agent.max_steps": 1,
        "agent.max_context": 4096,
        "agent.max_response": 64,
        "agent.token_warning": 0,
        "algorithm.kl": "k3",
        "algorithm.kl_coefficient": 0.01,
        "algorithm.importance_correction": "token_tis",
        "evaluation.every": None,
        "trainer.iterations": 10_000,
    }
    assume = Assumptions(
        prompt_tokens=150,
        context_tokens=mean,
        context_spread=spread,
        tokens_per_step=4096 - 150,
        sampled_share=1.0,
        tool_s=0,
        sandbox_start_s=0,
        grading_s=0,
    )
    return settings, assume


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published run."""

    name: str
    gpus: str
    seconds: float
    """Mean time of an iteration."""
    settings: dict[str, Any]
    assume: Assumptions = Assumptions()
    tokens: int | None = None
    """Mean length of a conversation, where it is published."""

    def plan(self) -> RunPlan:
        """The plan of this run, whose tests ran once: nobody published a run with false tests."""
        config = resolve("deepswe-32b", {"grading.counterfactual.mode": "off", **self.settings})
        basis = Basis(assume=self.assume, origins={})
        return plan_run(config, hardware=parse_hardware(self.gpus), basis=basis)


def math_row(name: str, model: str, seconds: float, tokens: int, **run: Any) -> Published:
    settings, assume = math_run(model, **run)
    return Published(
        name=f"{name} ({NEMO_RL})",
        gpus=f"{run['gpus']}xH100",
        seconds=seconds,
        tokens=tokens,
        settings=settings,
        assume=assume,
    )


ROWS = (
    Published(
        name="DeepSWE: 6 days on 64 H100 for about 200 iterations (blog), by the recipe deepswe-32b",
        gpus="64xH100",
        seconds=6 * 24 * 3600 / 200,
        settings={},
    ),
    math_row(
        "Llama 3.1 8B", "meta-llama/Llama-3.1-8B-Instruct", 97.7, 1060, gpus=16, tensor_parallel=1, mean=1060,
    ),
    math_row("Qwen3-32B", "Qwen/Qwen3-32B", 393, 3206, gpus=32, tensor_parallel=4, mean=4300),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_plan_has_the_published_time(row: Published) -> None:
    plan = row.plan()
    if row.tokens is not None:
        assert plan.tokens / plan.rollouts == pytest.approx(row.tokens, rel=0.02)
    assert plan.iteration_s == pytest.approx(row.seconds, rel=TOLERANCE)


def test_gpu_hours_of_deepswe() -> None:
    """9,180 H100-hours, by SERA's (arXiv:2601.20789) comparison of costs."""
    assert ROWS[0].plan().gpu_hours == pytest.approx(9180, rel=TOLERANCE)
