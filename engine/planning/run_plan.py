"""The plan of a run as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.planning.assumptions import Assumptions
from engine.planning.devices import Devices
from engine.planning.hardware import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """A part of an iteration."""

    name: str
    seconds: float
    remedy: str
    """Settings that make it shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandboxes:
    """Sandboxes and images of a run."""

    live: int
    """Sandboxes at once, for rollouts and gradings."""
    cores: float
    memory: int
    """Bytes."""
    starts: int
    """Sandboxes started per iteration."""
    images: int
    """Images pulled at least once over the run."""
    images_per_iteration: int
    disk: int
    """Bytes of these images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Needs and costs of a run."""

    name: str
    model: str
    parameters: int
    trained: int
    iterations: int
    hardware: Hardware
    devices: tuple[Devices, ...]
    concurrent: int
    """Rollouts at once."""
    rollouts: int
    """Rollouts per iteration."""
    tokens: int
    """Tokens of these rollouts."""
    sampled: int
    """Tokens of them that the policy samples."""
    timed_out: float
    """Share of rollouts that ``agent.rollout_timeout_s`` ends."""
    sampling_s: float
    """Mean time of a rollout in the sampler, seconds."""
    update_s: float
    """Time of an iteration's update, seconds, also where it is hidden behind rollouts."""
    publication_s: float
    """Time of a publication, seconds, also where it is hidden."""
    iteration: tuple[Time, ...]
    """Parts of an iteration, in their order; evaluations are spread over all iterations. Overlapping work
    counts only by its excess."""
    sandboxes: Sandboxes | None
    problems: tuple[str, ...]
    """Reasons why the run does not fit, each with what to change."""
    assumptions: Assumptions
    origins: Mapping[str, str]
    """Origin of each assumption that is no default: ``run 12``, or ``given``."""

    @property
    def iteration_s(self) -> float:
        """Return the time of an iteration, seconds."""
        return sum(part.seconds for part in self.iteration)

    @property
    def run_s(self) -> float:
        """Return the time of the run, seconds."""
        return self.iterations * self.iteration_s

    @property
    def hours(self) -> float:
        """Return the time of the run, hours."""
        return self.run_s / 3600

    @property
    def gpu_hours(self) -> float:
        """Return the time of the run multiplied by its GPUs; 0 on a CPU."""
        return 0.0 if self.hardware.gpu.device == "cpu" else self.hours * self.hardware.count

    @property
    def hidden(self) -> tuple[tuple[str, float], ...]:
        """Return the names and times of the work that runs beside the parts of an iteration."""
        names = {part.name for part in self.iteration}
        work = (("update", self.update_s), ("publication", self.publication_s))
        return tuple((name, seconds) for name, seconds in work if name not in names)

    @property
    def bottleneck(self) -> Time:
        """Return the longest part of an iteration."""
        return max(self.iteration, key=lambda part: part.seconds)
