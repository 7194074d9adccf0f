"""Rendering of a plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from engine.models.memory.plan import GIB
from engine.planning.assumptions import Assumptions
from engine.planning.devices import Devices
from engine.planning.run_plan import RunPlan, Sandboxes


def render(plan: RunPlan) -> str:
    """Return the plan as lines of text."""
    return "\n".join(
        [
            f"{plan.name}: {plan.model}, {plan.parameters / 1e9:.2f} billion parameters, "
            f"{plan.trained / 1e9:.3f} trained, on {plan.hardware}",
            *(line for devices in plan.devices for line in _memory(devices)),
            *_work(plan),
            *_time(plan),
            *(_sandboxes(plan.sandboxes) if plan.sandboxes else ()),
            "",
            *([f"PROBLEM  {problem}" for problem in plan.problems] or ["It fits."]),
            "",
            "Assumptions (--assume NAME=VALUE)",
            *_assumptions(plan),
        ]
    )


def to_json(plan: RunPlan) -> dict[str, Any]:
    """Return the plan as JSON data, including derived values."""
    return {
        **asdict(plan),
        "assumptions": plan.assumptions.model_dump(),
        "devices": [{**asdict(devices), "total": devices.total} for devices in plan.devices],
        "iteration_s": plan.iteration_s,
        "hidden": dict(plan.hidden),
        "hours": plan.hours,
        "gpu_hours": plan.gpu_hours,
        "bottleneck": plan.bottleneck.name,
        "fits": not plan.problems,
    }


def _memory(devices: Devices) -> Iterator[str]:
    yield ""
    yield f"Memory of each of {devices.count} devices: {devices.work}"
    for part in devices.parts:
        yield f"  {part.name:<32}{part.bytes / GIB:>9.2f} GiB"
    yield f"  {'total':<32}{devices.total / GIB:>9.2f} GiB of {devices.limit / GIB:.1f}"


def _work(plan: RunPlan) -> Iterator[str]:
    yield ""
    yield (
        f"An iteration: {plan.rollouts} rollouts, {plan.concurrent} at once, {plan.tokens:,} tokens, "
        f"{plan.sampled:,} of them sampled; {plan.timed_out:.0%} of the rollouts end by timeout"
    )


def _time(plan: RunPlan) -> Iterator[str]:
    for part in plan.iteration:
        yield f"  {part.name:<32}{part.seconds:>9.0f} s"
    yield f"  {'total':<32}{plan.iteration_s:>9.0f} s"
    if plan.hidden:
        yield "  at the same time: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in plan.hidden)
    yield (
        f"The run: {plan.iterations} iterations, {plan.hours:.1f} hours ({plan.hours / 24:.1f} days), "
        f"{plan.gpu_hours:,.0f} GPU-hours"
    )
    yield f"The bottleneck: {plan.bottleneck.name}. It shrinks with {plan.bottleneck.remedy}."


def _sandboxes(sandboxes: Sandboxes) -> Iterator[str]:
    yield (
        f"Sandboxes: {sandboxes.live} at once with {sandboxes.cores:.0f} cores and "
        f"{sandboxes.memory / GIB:.0f} GiB of memory; {sandboxes.starts} starts an iteration"
    )
    yield (
        f"Images: {sandboxes.images_per_iteration} an iteration, {sandboxes.images:,} in the run and at "
        f"least as many pulls; {sandboxes.disk / 1e9:,.0f} GB of disk if all are kept"
    )


def _assumptions(plan: RunPlan) -> Iterator[str]:
    defaults = Assumptions()
    for name, field in Assumptions.model_fields.items():
        value, description = getattr(plan.assumptions, name), " ".join((field.description or "").split())
        origin = plan.origins.get(name)
        changed = f" ({origin}; default {getattr(defaults, name):g})" if origin else ""
        yield f"  {name} = {value:.4g}{changed}: {description}"
