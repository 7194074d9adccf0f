"""Arms × seeds of an experiment, with the run of each cell."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.experiments import selectors as reads
from webapp.experiments.designs import Arm, setting_line, stored_design
from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run
from webapp.runs.services.states import TERMINAL, S


@dataclass(frozen=True, slots=True)
class SeedRun:
    """An arm with one seed; None where no run was started."""

    seed: int
    run: Run | None

    @property
    def is_missing(self) -> bool:
        """Return whether a launch creates or continues a run."""
        return self.run is None or self.run.state in (S.DRAFT, S.FAILED, S.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """An arm with its cells."""

    arm: Arm
    lines: tuple[str, ...]
    """Settings as ``KEY=VALUE``."""
    colour: int
    dash: int
    """Pattern of its line, a second cue beside the colour."""
    cells: tuple[SeedRun, ...]

    @property
    def num_ended(self) -> int:
        """Return the number of runs that have ended."""
        return sum(cell.run is not None and cell.run.state in TERMINAL for cell in self.cells)


def build_cells(experiment: Experiment) -> tuple[ArmRow, ...]:
    """Return the arms in the order of the design; none for an experiment without arms."""
    design = stored_design(experiment)
    if design is None:
        return ()
    runs = reads.arm_runs(experiment)
    return tuple(
        ArmRow(
            arm=arm,
            lines=tuple(setting_line(key, value) for key, value in arm.settings.items()),
            colour=1 + position % 9,
            dash=position // 9,
            cells=tuple(SeedRun(seed, runs.get((arm.name, seed))) for seed in design.seeds),
        )
        for position, arm in enumerate(design.arms)
    )
