"""Plans of recipes: memory, time, sandboxes, and errors for invalid input."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from engine.config.recipes import RECIPES, resolve
from engine.config.rollout import AgentConfig, GradingConfig
from engine.errors import ConfigError
from engine.models.devices import named_peak
from engine.planning import GPUS, Assumptions, RunPlan, parse_hardware, plan_run, render
from engine.planning.__main__ import main
from engine.planning.rollouts import Limits, Phase, simulate
from engine.planning.workload import SAMPLE, Rollout, sample_rollouts

MADE_FOR = {
    "qwen3-0.6b-one-gpu": "1xRTX-4090",
    "qwen3-4b-lora-24gb": "1xRTX-4090",
    "qwen3-coder-30b-8gpu": "8xH200",
    "deepswe-32b": "64xH100",
    "deepswe-32b-script": "64xH100",
    "deepswe-14b-filter": "16xH100",
    "deepswe-nonthinking": "64xH100",
    "deepswe-qwen3-coder-30b": "32xH100",
    "quickstart": "1xCPU",
    "quickstart-pool": "1xCPU",
    "frozenlake": "1xCPU",
}


def planned(recipe: str = "deepswe-32b", gpus: str = "64xH100", **settings: Any) -> RunPlan:
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    return plan_run(resolve(recipe, overrides), hardware=parse_hardware(gpus))


def seconds(plan: RunPlan) -> dict[str, float]:
    return {part.name: part.seconds for part in plan.iteration}


@pytest.mark.parametrize(("recipe", "gpus"), MADE_FOR.items())
def test_recipes_fit_the_hardware_they_name(recipe: str, gpus: str) -> None:
    plan = planned(recipe, gpus)
    assert plan.problems == ()
    assert sum(device.count for device in plan.devices) == plan.hardware.count
    assert plan.iteration_s == sum(seconds(plan).values())
    gpus_in_use = 0 if gpus == "1xCPU" else plan.hardware.count
    assert plan.gpu_hours == pytest.approx(gpus_in_use * plan.iterations * plan.iteration_s / 3600)
    assert plan.bottleneck.seconds == max(seconds(plan).values())
    assert (
        0 < plan.sampled < plan.tokens <= plan.rollouts * resolve(recipe).model_dump()["agent"]["max_context"]
    )


def test_plan_that_does_not_fit_suggests_a_change() -> None:
    (problem,) = planned("qwen3-coder-30b-8gpu", "8xH100").problems
    assert problem.startswith("trainer and sampler needs 112.3 GiB on each GPU, which has 74.5 GiB")
    assert "a smaller policy.max_batch" in problem
    (problem,) = planned(gpus="32xH100").problems
    assert "the run needs 64 GPUs and there are 32" in problem
    full = {"policy.vllm.tensor_parallel": 2, "policy.vllm.replicas": 16, "policy.vllm.gpu_memory": 0.5}
    config = resolve("deepswe-32b", full)
    (problem,) = plan_run(config).problems
    assert "the KV cache of a server holds" in problem


def test_more_or_faster_gpus_shorten_only_the_affected_phases() -> None:
    base = seconds(planned())
    wider = seconds(planned(gpus="96xH100", trainer__data_parallel=8))
    assert wider["update"] == pytest.approx(base["update"] / 2)
    assert {name: time for name, time in wider.items() if name != "update"} == {
        name: time for name, time in base.items() if name != "update"
    }
    faster = seconds(planned(gpus="64xH200"))
    assert faster["update"] == base["update"], "the same arithmetic"
    assert faster["wait for room"] < base["wait for room"], "more room in the cache"


def test_limit_that_delays_the_run_is_the_bottleneck() -> None:
    slow = planned(grading__max_parallel=2)
    assert slow.bottleneck.name == "grading after the last rollout"
    assert "grading.max_parallel" in slow.bottleneck.remedy
    assert seconds(slow)["grading after the last rollout"] > 512 * 20 / 2
    few = planned(rollout__max_concurrent=16)
    assert few.concurrent == 16
    waits = next(part for part in few.iteration if part.name == "wait for room")
    assert waits.remedy == "a larger rollout.max_concurrent"
    short = planned(agent__rollout_timeout_s=120)
    assert short.timed_out > 0.5
    assert short.tokens < planned().tokens


def test_planned_sandboxes_and_images_match_the_run() -> None:
    sandboxes = planned().sandboxes
    assert sandboxes is not None
    assert (sandboxes.images_per_iteration, sandboxes.starts, sandboxes.images) == (64, 1024, 4578)
    assert sandboxes.disk == pytest.approx(4578 * 0.4e9)
    assert sandboxes.memory == sandboxes.live * 4096 * 2**20
    assert planned(dataset__limit=10).sandboxes is not None
    limited = planned(dataset__limit=10, sandbox__max_live=32).sandboxes
    assert limited is not None
    assert (limited.images, limited.live) == (10, 32)


def phase(rollouts: list[Rollout], num: int, **limits: float) -> Phase:
    given = {"concurrent": 1e9, "starting": 1e9, "start_s": 0.0, "timeout_s": 1e9, "grading": 1e9, **limits}
    return simulate(rollouts, num, Limits(**given), lambda sequences, *_: 0.01 * max(1.0, sequences / 10))


def rollout(sampled: int = 100, tool_s: float = 0.0, grading_s: float = 0.0) -> Rollout:
    return Rollout(prompt=10, context=10 + sampled, sampled=sampled, tool_s=tool_s, grading_s=grading_s)


def test_simulated_phases_match_times_computed_by_hand() -> None:
    assert phase([rollout()] * 10, 10).total_s == pytest.approx(1.0)
    assert phase([rollout()] * 20, 20).total_s == pytest.approx(2.0), "twice as many share the sampler"
    assert phase([rollout()] * 20, 20, concurrent=10).total_s == pytest.approx(2.0), "two waves"
    tools = phase([rollout(tool_s=3.0)] * 10, 10)
    assert (tools.sampling_s, tools.tools_s) == pytest.approx((1.0, 3.0))
    starts = phase([rollout()] * 4, 4, start_s=5.0, starting=1)
    assert starts.total_s - starts.grading_s == pytest.approx(21.0), "one sandbox after the other"
    assert starts.grading_s == pytest.approx(5.0), "which has a sandbox of its own"
    slowest = phase([rollout()] * 9 + [rollout(1000)], 10)
    assert slowest.total_s == pytest.approx(10.0)
    assert slowest.slowest_s == pytest.approx(10.0 - 1.9)
    cut = phase([rollout(1000)] * 2, 2, timeout_s=4.0)
    assert (cut.total_s, cut.timed_out, cut.sampled) == pytest.approx((4.0, 1.0, 400.0))
    graded = phase([rollout(grading_s=6.0)] * 10, 10, grading=5)
    assert graded.grading_s == pytest.approx(12.0)


def test_sampled_rollouts_have_the_assumed_means_and_respect_limits() -> None:
    assume, agent = Assumptions(), AgentConfig(max_steps=1000, max_context=10**6)
    sample = sample_rollouts(512, agent, GradingConfig(timeout_s=1e6), assume)
    assert len(sample) == SAMPLE
    assert sum(item.context for item in sample) / SAMPLE == pytest.approx(assume.context_tokens, rel=0.02)
    assert sample == sample_rollouts(512, agent, GradingConfig(timeout_s=1e6), assume)
    short = sample_rollouts(8, AgentConfig(max_steps=10, max_context=65_536), GradingConfig(), assume)
    assert len(short) == 8
    assert {item.context for item in short} == {assume.prompt_tokens + 10 * assume.tokens_per_step}
    with pytest.raises(ConfigError, match=r"agent.max_context is 1000, but a prompt is assumed to have 4100"):
        sample_rollouts(8, AgentConfig(max_context=1000, max_response=500), GradingConfig(), assume)


def test_gpu_peaks_match_the_table_of_the_trainer() -> None:
    other = {"A100": "A100-SXM4-80GB", "A100-40GB": "A100-SXM4-40GB"}
    for name, gpu in GPUS.items():
        if gpu.device == "cpu":
            continue
        assert gpu.flops == named_peak(other.get(name, name.replace("-", " ")), torch.bfloat16), name
        assert gpu.bandwidth < gpu.flops / 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "unknown recipe 'nope'; known: collect, commits-dataset, deepswe-14b-filter, deepswe-32b"),
        (["deepswe-32b", "--gpus", "8xV100"], "unknown GPUs '8xV100': expected COUNTxNAME, e.g. 8xH100"),
        (["deepswe-32b", "--gpus", "0xH100"], "known names: GB200, B200, H200, H100"),
        (["deepswe-32b", "--assume", "speed=3"], "unknown assumption 'speed'; known: prompt_tokens"),
        (["deepswe-32b", "--assume", "mfu=2"], "mfu: Input should be less than or equal to 1"),
        (
            ["deepswe-32b", "--set", "policy.checkpoint=a/b"],
            "no shape of 'a/b' is known to the planner; known",
        ),
        (["deepswe-32b", "--set", "trainer.gpus=8"], "trainer.gpus: unknown setting"),
        (["collect"], "only runs of kind 'train' can be planned; this is of kind 'rollout'"),
    ],
)
def test_invalid_input_is_refused_with_the_known_values(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_command_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deepswe-32b", "--gpus", "64xH100", "--assume", "mfu=0.5"]) == 0
    text = capsys.readouterr().out
    assert "mfu = 0.5 (given; default 0.25): Model FLOPs utilisation" in text
    assert "It fits." in text
    assert "The bottleneck: " in text
    assert main(["deepswe-32b", "--gpus", "8xH100", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    plan = planned(gpus="8xH100")
    assert data["gpu_hours"] == pytest.approx(plan.gpu_hours)
    assert (data["fits"], data["problems"]) == (False, list(plan.problems))
    assert data["assumptions"] == Assumptions().model_dump()
    assert "PROBLEM  the run needs 64 GPUs and there are 8" in render(plan)


def test_every_training_recipe_is_planned() -> None:
    assert {recipe for recipe in RECIPES if resolve(recipe).kind == "train"} == set(MADE_FOR)


def test_configuration_changes_the_assumptions() -> None:
    loud, quiet = planned(), planned("deepswe-nonthinking")
    assert quiet.sampled < loud.sampled
    assert quiet.origins == {"sampled_share": "ten trajectories of R2E-Gym's agent without thinking"}
    assert loud.origins == {}
    tiny = planned("quickstart", "1xCPU")
    assert tiny.origins["prompt_tokens"] == "a run of the quickstart on two busy cores"
    assert tiny.gpu_hours == 0
    assert plan_run(resolve("quickstart")).hardware == tiny.hardware
    assert plan_run(resolve("quickstart", {"policy.checkpoint": "fresh:tiny"})).parameters < tiny.parameters


def test_planning_imports_no_machine_learning_libraries() -> None:
    code = (
        "import sys\nfrom engine.planning.__main__ import main\nassert main(['deepswe-32b']) == 0\n"
        "assert not {'torch', 'transformers', 'django'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_plan_includes_rounds_that_replace_uniform_groups() -> None:
    plain = planned(algorithm__dynamic_sampling=False)
    replacing = planned(algorithm__dynamic_sampling=True, algorithm__max_resampling_rounds=2)
    share = Assumptions().uniform_share
    rounds = [round(plain.rollouts * share), round(plain.rollouts * share**2)]
    assert replacing.rollouts == plain.rollouts + sum(rounds)
    assert replacing.tokens == pytest.approx(plain.tokens * replacing.rollouts / plain.rollouts, rel=0.01)
    assert replacing.update_s == plain.update_s
    before, after = seconds(plain), seconds(replacing)
    assert after.pop("groups in place of uniform ones") > 0
    assert after == before
    assert replacing.sandboxes is not None
    assert replacing.sandboxes.starts == 2 * replacing.rollouts


def test_asynchronous_replacements_cost_rollouts_but_no_rounds() -> None:
    settings: dict[str, Any] = {"schedule__mode": "async", "schedule__max_staleness": 4}
    plain = planned(**settings)
    replacing = planned(**settings, algorithm__dynamic_sampling=True)
    assert "groups in place of uniform ones" not in seconds(replacing)
    ratio = seconds(replacing)["sampling"] / seconds(plain)["sampling"]
    assert ratio == pytest.approx(replacing.rollouts / plain.rollouts)
    assert ratio > 1.3
