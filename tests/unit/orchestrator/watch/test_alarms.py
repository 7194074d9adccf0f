"""Alarms: thresholds from both sides, named groups, and state across restarts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from engine.orchestrator.watch.alarms import Alarms
from engine.orchestrator.watch.machine import MachineLoad, MachineProbe
from engine.orchestrator.watch.metrics import RolloutMetrics, iteration_metrics
from engine.orchestrator.watch.rollout_alarms import RolloutAlarms
from engine.processes import cgroups
from engine.rollout.summary import RolloutSummary
from engine.tokens import TokenRecord
from engine.types import Group, TerminationReason
from tests.unit.orchestrator.memory_sink import MemorySink, context
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory

QUIET = {
    "infra/rate": 0.0, "update/nonfinite": 0.0, "entropy/mean": 0.6, "tokens/response_mean": 100.0,
    "clip/high": 0.01, "clip/low": 0.01, "mismatch/mean": 1e-6, "reward/mean": 0.3,
    "termination/submitted": 0.9,
}  # fmt: skip
FREE = MachineLoad(per_core=0.5, cores=2, throttled=None)
MIXED, SAME = [1.0, 0.0], [0.0, 0.0]


def make_alarms() -> tuple[Alarms, MemorySink]:
    sink = MemorySink()
    return Alarms(context(sink)), sink


def group(
    name: str,
    rewards: Sequence[float | None] = MIXED,
    *,
    tokens: int = 4,
    logprob: float = -0.5,
    termination: TerminationReason = TerminationReason.SUBMITTED,
) -> Group:
    record = TokenRecord(ids=[1] * tokens, mask=[1] * tokens, logprobs=[logprob] * tokens)
    trajectories = [
        make_trajectory(reward, termination, index=i, task_id=name, tokens=record)
        for i, reward in enumerate(rewards)
    ]
    return make_group(trajectories, name)


def examine(
    alarms: Alarms,
    number: int,
    groups: Sequence[Group],
    metrics: Mapping[str, float] = QUIET,
    load: MachineLoad = FREE,
) -> None:
    alarms.after_iteration(number, groups, iteration_metrics(groups), metrics, load)


def watch(
    alarms: Alarms,
    changes: Sequence[Mapping[str, float]],
    groups: Sequence[Group] = (group("t"),),
    first: int = 0,
) -> None:
    for number, change in enumerate(changes, start=first):
        examine(alarms, number, groups, QUIET | dict(change))


def raised(
    changes: Sequence[Mapping[str, float]], groups: Sequence[Group] = (group("t"),)
) -> list[tuple[str, int]]:
    alarms, sink = make_alarms()
    watch(alarms, changes, groups)
    return [(alert["code"], alert["iteration"]) for alert in sink.alerts]


def test_a_quiet_run_raises_no_alert() -> None:
    assert raised([{}] * 30) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{"infra/rate": 0.02}], []),
        ([{"infra/rate": 0.021}] * 2, [("infrastructure_rate", 0), ("infrastructure_rate", 1)]),
        ([{"update/nonfinite": 1.0}], [("gradient_not_finite", 0)]),
        # Start 0.6 nats: low below 0.06, high above 1.8.
        ([{}] * 3 + [{"entropy/mean": 0.061}], []),
        ([{}] * 3 + [{"entropy/mean": 0.059}] * 3, [("entropy_low", 3)]),
        ([{"entropy/mean": 0.004}], [("entropy_low", 0)]),
        ([{}] * 3 + [{"entropy/mean": 1.79}], []),
        ([{}] * 3 + [{"entropy/mean": 1.81}], [("entropy_high", 3)]),
        ([{"entropy/mean": 0.1}] * 3 + [{"entropy/mean": 0.45}], []),
        ([{"clip/high": 0.2, "clip/low": 0.2}], []),
        ([{"clip/high": 0.2, "clip/low": 0.2}] * 2, [("clip_fraction", 1)]),
        ([{"clip/high": 0.2, "clip/low": 0.09}] * 5, []),
        ([{"mismatch/mean": 0.049}], []),
        ([{"mismatch/mean": 0.051}], [("mismatch", 0)]),
        ([{"steps/unparsed": 0.99}], []),
        ([{"steps/unparsed": 1.0}] * 2, [("unreadable_calls", 0)]),
        ([{"tokens/trained": 1.0}], []),
        (
            [{"tokens/trained": 0.0}] * 2 + [{}, {"tokens/trained": 0.0}],
            [("nothing_trained", n) for n in (0, 3)],
        ),
        ([{"sampling/batch_invariant": 1.0}], []),
        ([{"sampling/batch_invariant": 0.0}], [("not_batch_invariant", 0)]),
        ([{}] * 3 + [{"tokens/response_mean": 199.0}] * 4, []),
        ([{}] * 3 + [{"tokens/response_mean": 201.0}] * 4, [("response_length", 4)]),
    ],
)
def test_alerts_respect_thresholds(changes: list[dict[str, float]], expected: list[tuple[str, int]]) -> None:
    assert raised(changes) == expected


def test_infrastructure_alert_counts_lost_rollouts_by_cause() -> None:
    died = [replace(t, failure="died") for t in group("t", [None] * 3).trajectories]
    ungraded = make_trajectory(None, TerminationReason.SUBMITTED, index=3, task_id="t")
    stuck = make_trajectory(None, TerminationReason.MODEL_ERROR, index=4, task_id="t")
    alarms, sink = make_alarms()
    died = [replace(t, termination=TerminationReason.ENV_ERROR) for t in died]
    watch(alarms, [{"infra/rate": 0.5}], [make_group([*died, ungraded, stuck], "t")])
    (alert,) = sink.alerts
    assert "50.0% of the rollouts (3 × ended while in use, 1 × grading, 1 × model error)" in alert["message"]


TIMED = TerminationReason.ROLLOUT_TIMEOUT


def test_nothing_trained_alert_counts_rollouts_by_ending() -> None:
    alarms, sink = make_alarms()
    groups = [group("a", [0.0] * 4, termination=TIMED), group("b", [0.0, None, 0.0, 0.0])]
    watch(alarms, [{"tokens/trained": 0.0}], groups)
    alert = next(alert for alert in sink.alerts if alert["code"] == "nothing_trained")
    assert "(3 × submitted, 4 × rollout time limit, 1 × lost to infrastructure)" in alert["message"]
    assert alert["task_ids"] == ["a"]


@pytest.mark.parametrize(
    ("timed", "submitted", "expected"),
    [(1, 9, []), (2, 8, ["rollout_limits"]), (7, 0, ["rollout_limits"]), (8, 0, ["rollouts_alike"])],
)
def test_alerts_for_time_limits_and_equal_endings(timed: int, submitted: int, expected: list[str]) -> None:
    groups = [group("a", [0.0] * timed, termination=TIMED), group("b", [1.0] * submitted)]
    groups = [candidate for candidate in groups if candidate.trajectories]
    assert [code for code, _ in raised([{}], groups)] == expected


def test_step_limits_raise_an_alert_above_half_of_the_rollouts() -> None:
    steps = TerminationReason.MAX_STEPS
    assert raised([{}], [group("a", [0.0] * 4, termination=steps), group("b", [1.0] * 4)]) == []
    limited = [group("a", [0.0] * 5, termination=steps), group("b", [1.0] * 4)]
    assert raised([{}], limited) == [("rollout_limits", 0)]


def test_busy_machine_alert_requires_rollouts_ended_by_time_limits() -> None:
    busy = MachineLoad(per_core=4.5, cores=2, throttled=None)
    alarms, sink = make_alarms()
    examine(alarms, 0, [group("b", [1.0] * 20)], load=busy)
    assert sink.alerts == []
    examine(alarms, 1, [group("a", [0.0], termination=TIMED), group("b", [1.0] * 19)], load=busy)
    (alert,) = sink.alerts
    assert alert["code"] == "machine_busy"
    assert "load 9.0 on 2 cores) and time limits ended 1 of 20 rollouts" in alert["message"]


def test_rollout_alerts_are_raised_once_and_for_few_rollouts_only_at_the_end() -> None:
    sink = MemorySink()
    alarms = RolloutAlarms(context(sink), iteration=2, instances={"a": "task-a"})
    metrics = RolloutMetrics()
    for index in range(12):
        metrics.add(RolloutSummary.of(make_trajectory(0.0, TIMED, index=index, task_id="a")))
    alarms.check(metrics)
    assert sink.alerts == []
    alarms.check(metrics, ended=True)
    alarms.check(metrics, ended=True)
    (alert,) = [alert for alert in sink.alerts if alert["code"] != "machine_busy"]
    assert (alert["code"], alert["iteration"]) == ("rollouts_alike", 2)
    assert "all 12 rollouts ended alike (rollout time limit)" in alert["message"]
    assert metrics.endings.counts == {"submitted": 0, "rollout_timeout": 12}


def test_unreadable_calls_alert_supersedes_the_limits_alert_at_the_end() -> None:
    steps = TerminationReason.MAX_STEPS
    limited = [group("a", [0.0] * 9, termination=steps)]
    assert raised([{"steps/unparsed": 1.0}], limited) == [("unreadable_calls", 0)]
    sink = MemorySink()
    alarms = RolloutAlarms(context(sink), iteration=0, instances={})
    metrics = RolloutMetrics()
    for trajectory in limited[0].trajectories:
        metrics.add(replace(RolloutSummary.of(trajectory), num_steps=2, unparsed_steps=2))
    alarms.check(metrics)
    assert sink.alerts == []
    alarms.check(metrics, ended=True)
    (alert,) = sink.alerts
    assert alert["code"] == "unreadable_calls"
    assert "no response had a readable tool call" in alert["message"]


def test_throttled_share_is_measured_between_probe_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("0::/service/engine\n")
    own = tmp_path / "service" / "engine"
    own.mkdir(parents=True)
    (own / "cpu.stat").write_text("usage_usec 1\nnr_periods 0\nnr_throttled 0\n")
    stat = own.parent / "cpu.stat"
    measured = partial(cgroups.throttled_periods, tmp_path / "mounts", tmp_path / "own")
    monkeypatch.setattr(cgroups, "throttled_periods", measured)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 1.0, 1.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    stat.write_text("usage_usec 1\nnr_periods 100\nnr_throttled 10\n")
    (tmp_path / "cpu.stat").write_text("nr_periods 9000\nnr_throttled 8000\n")  # before the probe
    probe = MachineProbe()
    assert probe.load().throttled is None
    stat.write_text("usage_usec 2\nnr_periods 200\nnr_throttled 70\n")
    load = probe.load()
    assert load.is_high
    assert load.metrics == {"machine/load": 3.0, "machine/throttled_share": 0.6}
    assert str(load) == "load 6.0 on 2 cores, processor quota reached in 60% of the time"


def test_an_alert_is_raised_again_only_after_its_condition_ceased() -> None:
    bad = {"mismatch/mean": 1.0}
    assert raised([bad, bad, bad, {}, bad]) == [("mismatch", 0), ("mismatch", 4)]


def test_uniform_groups_raise_an_alert_after_three_iterations() -> None:
    uniform = [group(f"u{i}", SAME) for i in range(9)]
    assert raised([{}] * 2, [*uniform, group("m")]) == []
    assert raised([{}] * 9, [*uniform, group("m")]) == [("uniform_groups", 2)]
    assert raised([{}] * 9, [*uniform[:8], group("m"), group("n")]) == []
    assert raised([{}] * 9, [group("m")]) == []


def trend(reward: float, submitted: float) -> list[dict[str, float]]:
    return [{}] * 5 + [{"reward/mean": 0.3 + reward, "termination/submitted": 0.9 - submitted}] * 5


def test_rising_reward_with_falling_submissions_raises_an_alert() -> None:
    assert raised(trend(0.06, 0.06)) == [("reward_without_submission", 9)]
    assert raised(trend(0.04, 0.06)) == []
    assert raised(trend(0.06, 0.04)) == []
    assert raised(trend(-0.1, 0.1)) == []
    assert raised(trend(0.06, 0.06)[1:]) == []


def named(change: dict[str, float], groups: Sequence[Group], *, quiet: int = 0, times: int = 1) -> list[str]:
    alarms, sink = make_alarms()
    watch(alarms, [{}] * quiet + [change] * times, groups)
    (alert,) = sink.alerts
    assert all(f"task-{task_id}" in alert["message"] for task_id in alert["task_ids"])
    return list(alert["task_ids"])


def test_every_alert_names_the_relevant_groups() -> None:
    short, long = group("short", tokens=3), group("long", tokens=30)
    sure, unsure = group("sure", logprob=-0.01), group("unsure", logprob=-3.0)
    assert named({"infra/rate": 0.5}, [group("ok"), group("lost", [1.0, None])]) == ["lost"]
    assert named({"update/nonfinite": 1.0}, [short, long]) == ["long", "short"]
    assert named({}, [group("a", SAME), group("b", SAME)], times=3) == ["a", "b"]
    assert named({"entropy/mean": 0.001}, [unsure, sure])[0] == "sure"
    assert named({"entropy/mean": 5.0}, [sure, unsure], quiet=3)[0] == "unsure"
    assert named({"clip/high": 0.5}, [short, long], times=2)[0] == "long"
    assert named({"mismatch/mean": 1.0}, [short, long])[0] == "long"
    assert named({"tokens/response_mean": 900.0}, [short, long], quiet=3, times=2)[0] == "long"
    cheat = group("cheat", termination=TerminationReason.MAX_STEPS)
    honest = group("honest")
    change = {"reward/mean": 0.9, "termination/submitted": 0.1}
    assert named(change, [honest, cheat], quiet=5, times=5) == ["cheat"]


def test_at_most_five_groups_are_named() -> None:
    groups = [group(f"g{i}", tokens=i + 1) for i in range(9)]
    assert named({"mismatch/mean": 1.0}, groups) == ["g8", "g7", "g6", "g5", "g4"]


def test_a_restart_neither_repeats_nor_misses_alerts() -> None:
    quiet: list[dict[str, float]] = [{}] * 4
    changes = quiet + [{"mismatch/mean": 1.0, "entropy/mean": 0.01}] * 4 + trend(0.2, 0.2)
    whole, sink = make_alarms()
    watch(whole, changes)
    assert {alert["code"] for alert in sink.alerts} == {
        "mismatch",
        "entropy_low",
        "reward_without_submission",
    }
    for cut in range(1, len(changes)):
        first, before = make_alarms()
        watch(first, changes[:cut])
        second, after = make_alarms()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        watch(second, changes[cut:], first=cut)
        assert before.alerts + after.alerts == sink.alerts
