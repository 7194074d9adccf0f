"""Launch of an experiment: one run for each arm and seed."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from engine.errors import ConfigError, Problem
from engine.types import RunState
from webapp.core.services import audit
from webapp.experiments.designs import Arm, Design, checked_design, stored_design
from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run
from webapp.runs.services import runs

_STARTED = (RunState.FAILED, RunState.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Runs that a launch queued."""

    created: tuple[Run, ...]
    continued: tuple[Run, ...]
    """Runs that existed as drafts, or had failed or been stopped."""


def runs_of_arms(experiment: Experiment) -> QuerySet[Run]:
    """Return the runs of the arms; archived runs do not count."""
    return Run.objects.filter(experiment=experiment, archived_at=None).exclude(arm="").order_by("pk")


def continuable(experiment: Experiment, design: Design | None = None) -> list[Run]:
    """Return the runs that a launch of a design continues. Raises ConfigError as ``launch`` does."""
    present = _present(experiment)
    merged = _merged(stored_design(experiment), design, set(present))
    cells = {(arm.name, seed) for arm in merged.arms for seed in merged.seeds}
    waiting = (RunState.DRAFT, *_STARTED)
    return [run for cell, run in present.items() if cell in cells and run.state in waiting]


def _present(experiment: Experiment) -> dict[tuple[str, int], Run]:
    """Return the newest run of each arm and seed."""
    runs_of = runs_of_arms(experiment).select_related("created_by", "experiment")
    return {(run.arm, run.config["seed"]): run for run in runs_of}


@transaction.atomic
def launch(*, experiment: Experiment, design: Design | None = None, actor: User | None = None) -> Launched:
    """Queue what is missing of an experiment's arms × seeds: all runs, or none where a setting is invalid.

    A run that exists is left alone; a draft is started, a failed or stopped run continues from its last
    checkpoint. Another design adds arms and seeds to those with runs.

    Args:
        experiment: the experiment.
        design: arms and seeds; None: those of the last launch.
        actor: the requesting user.

    Raises:
        ConfigError: there is no design, an arm with runs has other settings, or settings are invalid; the
            setting of an arm's problem begins with ``arms.NAME``.
    """
    row = Experiment.objects.select_for_update().get(pk=experiment.pk)
    present = _present(row)
    last = stored_design(row)
    merged = _merged(last, design, set(present))
    base = _base(merged)
    created: list[Run] = []
    continued: list[Run] = []
    problems: list[Problem] = []
    for arm in merged.arms:
        try:
            for seed in merged.seeds:
                run = present.get((arm.name, seed))
                if run is None:
                    run = _create(row, merged, base, arm, seed, actor)
                    runs.start(run=run, actor=actor)
                    created.append(run)
                elif run.state == RunState.DRAFT:
                    runs.start(run=run, actor=actor)
                    continued.append(run)
                elif run.state in _STARTED:
                    runs.resume(run=run, actor=actor)
                    continued.append(run)
        except ConfigError as error:
            problems += [
                Problem(problem.message, f"arms.{arm.name}.{problem.setting}".rstrip("."))
                for problem in error.problems
            ]
    if problems:
        raise ConfigError(*problems)
    removed = _remove_from_arms(row, last, merged)
    row.design = merged.model_dump(mode="json")
    row.save(update_fields=["design"])
    audit.record(
        actor=actor,
        action="experiment.launch",
        target=f"experiment {row.name}",
        changes={
            "design": row.design,
            "created": [run.pk for run in created],
            "continued": [run.pk for run in continued],
            "removed_from_arms": removed,
        },
    )
    experiment.refresh_from_db()
    return Launched(created=tuple(created), continued=tuple(continued))


def _merged(old: Design | None, new: Design | None, present: set[tuple[str, int]]) -> Design:
    """Return the new design with the arms and seeds of the old one that have runs."""
    if old is None or new is None:
        if (known := new or old) is None:
            raise ConfigError(Problem("the experiment has no arms yet: name at least one", "arms"))
        return known
    arms = {arm.name: arm for arm in old.arms if arm.name in {name for name, _ in present}}
    if arms and (old.recipe, old.base_run) != (new.recipe, new.base_run):
        start = old.recipe or f"run {old.base_run}"
        raise ConfigError(
            Problem(f"the runs of the experiment start from {start}: use another experiment", "recipe")
        )
    problems = [
        Problem("it has runs with other settings: name a new arm", f"arms.{arm.name}")
        for arm in new.arms
        if arm.name in arms and arms[arm.name].settings != arm.settings
    ]
    if problems:
        raise ConfigError(*problems)
    kept_seeds = [seed for seed in old.seeds if seed in {seed for _, seed in present}]
    listed = {**arms, **{arm.name: arm for arm in new.arms}}.values()
    return checked_design(
        {
            "recipe": new.recipe,
            "base_run": new.base_run,
            "arms": [arm.model_dump() for arm in listed],
            "seeds": list(dict.fromkeys([*kept_seeds, *new.seeds])),
        }
    )


def _remove_from_arms(experiment: Experiment, old: Design | None, new: Design) -> list[int]:
    """Remove archived runs from arms that are not in both designs with the same settings and start.

    Restored, they would count as runs of an arm of this name. Returns their numbers.
    """
    same_start = old is not None and (old.recipe, old.base_run) == (new.recipe, new.base_run)
    before = {arm.name: arm.settings for arm in old.arms} if old is not None and same_start else {}
    kept = ["", *(arm.name for arm in new.arms if before.get(arm.name) == arm.settings)]
    archived = Run.objects.filter(experiment=experiment, archived_at__isnull=False).exclude(arm__in=kept)
    numbers = list(archived.order_by("pk").values_list("pk", flat=True))
    Run.objects.filter(pk__in=numbers).update(arm="")
    return numbers


def _base(design: Design) -> Run | None:
    if design.base_run is None:
        return None
    base = Run.objects.filter(pk=design.base_run).first()
    if base is None:
        raise ConfigError(Problem(f"there is no run {design.base_run}", "base_run"))
    return base


def _create(
    experiment: Experiment, design: Design, base: Run | None, arm: Arm, seed: int, actor: User | None
) -> Run:
    name = f"{arm.name} · seed {seed} · {experiment.name[:100]}"
    overrides = {**arm.settings, "seed": seed, "name": name}
    if base is not None:
        return runs.clone(run=base, overrides=overrides, actor=actor, experiment=experiment, arm=arm.name)
    return runs.create(
        recipe=design.recipe, overrides=overrides, actor=actor, experiment=experiment, arm=arm.name
    )
