"""Plan of the run in a form, shown beside it: its needs and costs on the chosen GPUs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import ConfigError, Problem
from engine.models.memory.plan import GIB
from engine.planning import GPUS, Assumptions, Basis, RunPlan, parse_hardware
from engine.planning.devices import Devices
from engine.planning.hardware import CPU
from engine.planning.plan import train_run
from engine.reading import parse_json
from engine.types import RunKind
from webapp.runs.contexts.forms.form import FormField
from webapp.runs.selectors import plans
from webapp.runs.services.drafts import Draft

GPUS_FIELD = "plan.gpus"
"""Field of the form with the GPUs to plan for; empty: as many as the run needs."""
PREFIX = "assume."
"""Prefix of the fields with assumptions: ``assume.mfu``."""
_SHOWN_S = 0.05
"""Time from which a part of an iteration is shown, seconds."""
RENDERED = "rendered_assumptions"
"""Field of the form with the assumptions that it was rendered with, as JSON."""
_KINDS = (
    ("sampler: KV cache", "part-cache", "KV cache"),
    ("sampler", "part-sampler", "sampler weights and workspace"),
    ("activations", "part-activations", "activations"),
    ("one layer", "part-logits", "one layer's passes or logits"),
    ("optimizer", "part-optimizer", "optimizer"),
    ("gradients", "part-gradients", "gradients"),
    ("CUDA", "part-runtime", "CUDA runtime"),
)
"""Beginning of a part's name, its CSS class and its label; all others are weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """Memory of GPUs with the same work."""

    work: str
    count: int
    total_gib: float
    limit_gib: float
    fits: bool
    bar: tuple[tuple[str, str, float], ...]
    """Label, CSS class and GiB of each part, and of the free rest."""
    parts: tuple[tuple[str, str, float], ...]
    """The same without the rest, largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why there is no plan, or why the run does not fit."""

    message: str
    field: str = ""
    """Name of the field to change; empty where the message names settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan as the form shows it."""

    gpus: str
    """GPUs that the plan is for, as entered."""
    gpu_choices: tuple[str, ...]
    plan: RunPlan | None
    devices: tuple[DeviceView, ...]
    times: tuple[tuple[str, str, float], ...]
    """Label, CSS class and seconds of each part of an iteration."""
    refusals: tuple[Refusal, ...]
    fields: tuple[FormField, ...]
    """Assumptions as inputs."""
    used: str
    """Value without the person's changes, and its origin, of each assumption, as JSON."""
    given: int
    """Number of assumptions that the person changed."""
    measured_by: tuple[tuple[str, int], ...]
    """Origins of the others that are no defaults, with their number."""


def build_plan(draft: Draft, posted: Mapping[str, str]) -> PlanView | None:
    """Return the plan of a form; None for kinds of run without a plan.

    Args:
        draft: the draft in the form.
        posted: fields of the form, among them ``plan.gpus``, ``assume.…`` and ``rendered_assumptions``.
    """
    if draft.original["kind"] != RunKind.TRAIN.value:
        return None
    gpus, given = posted.get(GPUS_FIELD, "").strip(), _given(posted)
    basis = Basis(assume=Assumptions(), origins={})
    plan: RunPlan | None = None
    try:
        config = train_run(draft.resolved())
        basis = plans.basis_of(config, parse_hardware(gpus) if gpus else None, {})
        plan = plans.plan(config, gpus=gpus or None, assumptions=given)
        refusals = tuple(Refusal(message=problem) for problem in plan.problems)
    except ConfigError as error:
        refusals = tuple(_refusal(problem) for problem in error.problems)
    return PlanView(
        gpus=gpus,
        gpu_choices=tuple(f"{count}x{name}" for name in GPUS for count in (1, 8, 64) if name != CPU),
        plan=plan,
        devices=tuple(_device(devices) for devices in plan.devices) if plan else (),
        times=_times(plan) if plan else (),
        refusals=refusals,
        fields=tuple(_field(name, basis, given, refusals) for name in Assumptions.model_fields),
        used=json.dumps(
            {name: (_text(basis, name), basis.origins.get(name, "")) for name in Assumptions.model_fields}
        ),
        given=len(given),
        measured_by=tuple(sorted(Counter(basis.origins.values()).items())),
    )


def _given(posted: Mapping[str, str]) -> dict[str, str]:
    """Return the assumptions that differ from those with which the form was rendered."""
    try:
        rendered = parse_json(posted.get(RENDERED, "{}"))
    except ValueError:
        rendered = {}
    before = rendered if isinstance(rendered, dict) else {}
    entered = {name: posted.get(PREFIX + name, "").strip() for name in Assumptions.model_fields}
    return {name: text for name, text in entered.items() if text and text not in before.get(name, ())[:1]}


def _times(plan: RunPlan) -> tuple[tuple[str, str, float], ...]:
    parts = enumerate(plan.iteration)
    return tuple((part.name, f"part-{i}", part.seconds) for i, part in parts if part.seconds >= _SHOWN_S)


def _refusal(problem: Problem) -> Refusal:
    field = PREFIX + problem.setting if problem.setting in Assumptions.model_fields else problem.setting
    return Refusal(message=problem.message, field=field)


def _field(name: str, basis: Basis, given: Mapping[str, str], refusals: Sequence[Refusal]) -> FormField:
    key, used = PREFIX + name, _text(basis, name)
    return FormField(
        key=key,
        name=name.replace("_", " "),
        widget="number",
        value=given.get(name, used),
        base=used,
        choices=(),
        help=Assumptions.model_fields[name].description or "",
        optional=False,
        error=next((refusal.message for refusal in refusals if refusal.field == key), ""),
    )


def _text(basis: Basis, name: str) -> str:
    return f"{getattr(basis.assume, name):.4g}"


def _device(devices: Devices) -> DeviceView:
    sizes = Counter[tuple[str, str]]()
    for part in devices.parts:
        sizes[_kind(part.name)] += part.bytes
    parts = tuple((label, css, size / GIB) for (label, css), size in sizes.most_common() if size)
    free = max(0, devices.limit - devices.total) / GIB
    return DeviceView(
        work=devices.work,
        count=devices.count,
        total_gib=devices.total / GIB,
        limit_gib=devices.limit / GIB,
        fits=devices.total <= devices.limit,
        bar=(*parts, ("free", "part-free", free)),
        parts=parts,
    )


def _kind(part: str) -> tuple[str, str]:
    """Return the label and the colour of a part of the memory."""
    return next(
        ((label, css) for start, css, label in _KINDS if part.startswith(start)), ("weights", "part-weights")
    )
