"""Names and units of the metrics that engines report, by subject.

To add a metric: a line in its subject below. The page of an iteration and the titles of charts use it; a test
finds metrics of the engine without an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from webapp.core.contexts.words import FAILURES, in_words

SHARE, SECONDS, DOLLARS, FLOPS, YES_OR_NO = "share", "seconds", "US dollars", "FLOP/s", "yes or no"
"""Units with a format of their own (``templatetags.yard.in_unit``); "of …" may follow ``SHARE``."""
MAX_UNNAMED = 100
"""Metrics without an entry that a page shows."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Name and unit of a metric; the unit is empty for plain numbers."""

    label: str
    unit: str = ""


SUBJECTS: Mapping[str, Mapping[str, Metric]] = MappingProxyType({
    "Reward": {
        "reward/mean": Metric("mean reward"),
        "solve/rate": Metric("rollouts solved", SHARE),
        "solve/none": Metric("groups without a solved rollout", SHARE),
        "solve/partial": Metric("groups partly solved", SHARE),
        "solve/all": Metric("groups fully solved", SHARE),
        "solve/cut_short": Metric("groups ended by time limits", SHARE),
        "groups/uniform": Metric("groups without contrast", SHARE),
        "advantage/std": Metric("standard deviation of advantages"),
    },
    "Rollouts": {
        "steps/mean": Metric("environment steps", "per rollout"),
        "steps/unparsed": Metric("steps without a readable tool call", SHARE),
        "tokens/response_mean": Metric("response length", "tokens per rollout"),
        "tokens/prompt_mean": Metric("prompt tokens over all steps", "tokens per rollout"),
        "tokens/thinking_per_step": Metric("thinking per step", "tokens per step"),
        "conversation/forks": Metric("conversations rendered anew", "per rollout"),
        "cost/total": Metric("cost", DOLLARS),
    },
    "Infrastructure": {
        "infra/rate": Metric("rollouts lost to infrastructure", SHARE),
        "sandbox/start_ms": Metric("sandbox time, mean", "ms"),
        "endpoint/answered": Metric("answered endpoint requests"),
        "endpoint/repeated": Metric("repeated endpoint requests"),
        "endpoint/rate_limited": Metric("rate-limited endpoint requests"),
    },
    "Grading": {
        "grading/reused": Metric("reused verdicts", SHARE),
        "grading/extra_share": Metric("runs of mutated tests", "share of grading time"),
    },
    "Batch": {
        "funnel/trajectories": Metric("collected rollouts"),
        "funnel/infrastructure": Metric("without a result"),
        "funnel/filtered": Metric("masked by a filter"),
        "funnel/zero_advantage": Metric("with advantage zero"),
        "funnel/trained": Metric("trained samples"),
        "resampling/rounds": Metric("rounds of resampling"),
        "resampling/discarded": Metric("discarded groups"),
        "kept/trajectories": Metric("kept rollouts"),
        "kept/tasks": Metric("tasks with kept rollouts"),
        "kept/duplicates": Metric("rollouts dropped as duplicates"),
        "kept/over_cap": Metric("rollouts dropped over the cap of a task"),
        "curriculum/resting_none": Metric("resting tasks, never solved"),
        "curriculum/resting_all": Metric("resting tasks, always solved"),
        "curriculum/unmeasured": Metric("tasks not sampled yet"),
        "curriculum/weight_mean": Metric("mean weight of active tasks"),
    },
    "Policy lag": {
        "staleness/mean": Metric("mean staleness of tokens", "weight updates"),
        "staleness/max": Metric("largest staleness", "weight updates"),
        "staleness/off_policy_share": Metric("stale tokens", SHARE),
        "staleness/mixed_share": Metric("rollouts with several versions", SHARE),
        "staleness/cancelled": Metric("siblings cancelled by the deadline", SHARE),
    },
    "Loss": {
        "loss/value": Metric("loss"),
        "loss/heldout": Metric("evaluation loss"),
        "loss/heldout_before": Metric("evaluation loss before the update"),
        "grad/norm": Metric("gradient norm"),
        "entropy/mean": Metric("entropy", "nats"),
        "kl/mean": Metric("KL divergence from the reference", "nats per token"),
        "clip/high": Metric("tokens clipped above", SHARE),
        "clip/low": Metric("tokens clipped below", SHARE),
        "clip/dual": Metric("tokens under the dual clip", SHARE),
        "ratio/mean": Metric("mean importance ratio"),
        "ratio/max": Metric("largest importance ratio"),
        "ratio/effective_share": Metric("effective sample size", SHARE),
        "correction/mean": Metric("mean correction weight"),
        "mismatch/mean": Metric("|log π − log μ|", "nats per token"),
        "mismatch/max": Metric("largest |log π − log μ|", "nats"),
        "mismatch/kl_k1": Metric("KL between sampler and trainer, k1", "nats per token"),
        "mismatch/kl_k3": Metric("KL between sampler and trainer, k3", "nats per token"),
        "sampling/batch_invariant": Metric("sampling independent of its batch", YES_OR_NO),
    },
    "Update": {
        "update/steps": Metric("optimizer steps"),
        "update/skipped": Metric("steps without a gradient"),
        "update/nonfinite": Metric("steps with a gradient not finite"),
        "update/learning_rate": Metric("learning rate"),
        "update/seconds": Metric("update", SECONDS),
        "update/tokens_per_s": Metric("throughput", "tokens/s"),
        "update/flops_per_s": Metric("arithmetic", FLOPS),
        "update/recomputed_share": Metric("recomputed arithmetic", SHARE),
        "update/mfu": Metric("model FLOPs utilisation", SHARE),
        "update/mfu_training": Metric("utilisation while training", SHARE),
        "update/mfu_scoring": Metric("utilisation while scoring", SHARE),
        "tokens/trained": Metric("trained tokens", "tokens"),
        "tokens/masked_share": Metric("tokens masked by clip or correction", SHARE),
        "tokens/padding_share": Metric("padding", SHARE),
        "tokens/shared_share": Metric("tokens saved by shared prefixes", SHARE),
    },
    "Time": {
        "time/iteration": Metric("iteration", SECONDS),
        "time/rollout": Metric("rollouts", SECONDS),
        "time/update": Metric("update", SECONDS),
        "time/checkpoint": Metric("checkpoint", SECONDS),
        "time/grading": Metric("grading, summed over rollouts", SECONDS),
        "time/engine_busy": Metric("engines busy", SECONDS),
        "time/trajectory_mean": Metric("mean of a rollout", SECONDS),
        "time/queue_mean": Metric("… queued", SECONDS),
        "time/pull_mean": Metric("… image pull", SECONDS),
        "time/start_mean": Metric("… sandbox start", SECONDS),
        "time/model_mean": Metric("… model", SECONDS),
        "time/tools_mean": Metric("… tools", SECONDS),
        "time/tests_mean": Metric("… tests", SECONDS),
        "time/sandbox_wait": Metric("wait for slot and sandbox, mean", SECONDS),
        "time/grading_wait": Metric("wait for a grading slot, mean", SECONDS),
    },
    "Inference engines": {
        "engine/kv_use": Metric("KV cache use", "share of the engines' caches"),
        "engine/running": Metric("running requests, mean"),
        "engine/waiting": Metric("waiting requests, mean"),
        "engine/prefix_hit_rate": Metric("prefix cache hit rate", "share of prompt tokens"),
        "engine/tokens_per_s": Metric("sampling throughput", "tokens/s"),
        "engine/restarts": Metric("engine restarts"),
        "publish/seconds": Metric("weight publication", SECONDS),
        "publish/mib": Metric("published weights", "MiB"),
        "publish/replicas": Metric("engines with verified weights", "engines"),
        "publish/parity": Metric("largest difference of log-probabilities after publication", "nats"),
    },
    "Machine": {
        "machine/load": Metric("runnable processes per core"),
        "machine/throttled_share": Metric("time at the CPU quota", SHARE),
        "loop/held_p50_ms": Metric("event loop blocked, median", "ms"),
        "loop/held_p99_ms": Metric("event loop blocked, 99th percentile", "ms"),
        "loop/held_p999_ms": Metric("event loop blocked, 99.9th percentile", "ms"),
        "loop/held_max_ms": Metric("event loop blocked, longest", "ms"),
    },
})  # fmt: skip
FAMILIES = MappingProxyType({
    "termination": "Endings of rollouts", "verdict": "Verdicts", "failure": "Sandbox failures",
})  # fmt: skip
"""Areas with one share for each ending, verdict or kind of failure, by their subjects."""
METRICS: Mapping[str, Metric] = MappingProxyType(
    {key: metric for metrics in SUBJECTS.values() for key, metric in metrics.items()}
)


def described(key: str) -> tuple[str, Metric] | None:
    """Return a metric's subject and name; None if it has no entry."""
    area, _, name = key.partition("/")
    if area in FAMILIES:
        label = in_words(name, FAILURES) if area == "failure" else in_words(name)
        return FAMILIES[area], Metric(label, SHARE)
    subject = next((subject for subject, metrics in SUBJECTS.items() if key in metrics), None)
    return (subject, METRICS[key]) if subject else None


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric with its value."""

    metric: Metric
    value: float


@dataclass(frozen=True, slots=True)
class MeasuredSubject:
    """Metrics of one subject; ``num_left_out`` counts those that are not shown."""

    title: str
    metrics: tuple[Measured, ...]
    num_left_out: int = 0


def by_subject(metrics: Mapping[str, float]) -> tuple[MeasuredSubject, ...]:
    """Group metrics by subject; those of other trainers without an entry come last, under their own keys."""
    order = {key: place for place, key in enumerate(METRICS)}
    groups: dict[str, list[Measured]] = {title: [] for title in (*SUBJECTS, *FAMILIES.values())}
    unnamed: list[Measured] = []
    for key in sorted(metrics, key=lambda key: (order.get(key, len(order)), key)):
        description = described(key)
        if description is None:
            unnamed.append(Measured(Metric(key), metrics[key]))
        else:
            groups[description[0]].append(Measured(description[1], metrics[key]))
    shown = [MeasuredSubject(title, tuple(group)) for title, group in groups.items() if group]
    if unnamed:
        left_out = max(0, len(unnamed) - MAX_UNNAMED)
        shown.append(MeasuredSubject("Other", tuple(unnamed[:MAX_UNNAMED]), left_out))
    return tuple(shown)
