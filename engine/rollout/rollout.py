"""A rollout from admission to grade: environment, agent loop, patch, fresh attempts, grading."""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from engine.agent.loop import AgentLoop, AgentOutcome
from engine.agent.prompts import Prompt
from engine.config.rollout import AgentConfig
from engine.environments.base import Environment, EnvironmentFactory
from engine.errors import PatchError, RunEndingError, SandboxError, describe_error
from engine.grading.submission.tampering import find_tampering
from engine.inference.base import Policy, SamplingParams
from engine.rollout.observer import GuardedObserver, ObserverFailedError
from engine.rollout.recorded import RecordedTurns
from engine.rollout.seeds import environment_seed, step_seed
from engine.sandbox.failures import Decision, decide, kind_of, own_doing
from engine.tokens import TokenRecord
from engine.types import (
    INFRASTRUCTURE_REASONS,
    Grade,
    RolloutKey,
    RolloutPhase,
    TaskRow,
    TerminationReason,
    Timings,
    Trajectory,
    Verdict,
)

_log = structlog.get_logger(__name__)

_NOT_REPEATED = INFRASTRUCTURE_REASONS | {TerminationReason.SUBMITTED}
_PATCH_DEADLINE_S = 60.0
_RETRY_PAUSE_S = 0.1


def open_gate() -> asyncio.Event:
    """Return an event that is set."""
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutParts:
    """Parts shared by all rollouts of a scheduler."""

    environments: EnvironmentFactory
    policy: Policy
    prompt: Prompt
    agent: AgentConfig
    sampling: SamplingParams
    observer: GuardedObserver
    seed: int
    slots: asyncio.Semaphore
    """Limits the rollouts that act at once."""
    retry_temperatures: tuple[float, ...] = ()
    """Sampling temperatures of repetitions until the model submits."""
    gate: asyncio.Event = field(default_factory=open_gate)
    """Clear while attempts have to wait."""


@dataclass(slots=True, kw_only=True, eq=False)
class Rollout:
    """A rollout; ``run`` returns its trajectory after any failure that does not end the run."""

    parts: RolloutParts
    key: RolloutKey
    row: TaskRow
    recorded: RecordedTurns | None = None
    """Reads an earlier attempt's turns, which every attempt repeats first; None: there are none."""
    _environment: Environment = field(init=False)
    """Environment of the last attempt."""
    _outcome: AgentOutcome = field(init=False)
    _patch: str = field(init=False, default="")
    _unpatchable: str = field(init=False, default="")
    """Reason why the agent's changes cannot become a patch."""
    _grade: Grade | None = field(init=False, default=None)
    """Grade of the last attempt, where its environment grades in place."""
    _attempts: int = field(init=False, default=0)
    _announced: bool = field(init=False, default=False)
    _failures: list[str] = field(init=False, default_factory=list)
    """Kinds of sandbox failure, one for each failed attempt."""
    _sampling: SamplingParams = field(init=False)
    _repetition: int = field(init=False, default=0)
    """Number of earlier attempts that ended without submission."""
    _own_doing: bool = field(init=False, default=False)
    """Whether the failures are attributed to the agent."""
    _cost: float | None = field(init=False, default=None)
    """US dollars of all attempts so far; None where no price is known."""
    _recorded_cost: float = field(init=False, default=0.0)
    """US dollars of the turns that an earlier attempt of the run recorded."""
    _seconds: dict[str, float] = field(init=False, default_factory=dict)
    _began: float = field(init=False, default=0.0)
    _interruption: asyncio.Timeout | None = field(init=False, default=None)
    """Set while an attempt can be interrupted."""

    def __post_init__(self) -> None:
        self._sampling = self.parts.sampling
        self._outcome = _nothing(TerminationReason.CANCELLED)

    async def run(self) -> Trajectory:
        """Run the rollout and return its trajectory.

        A cancellation, or an error that ends the run, is re-raised after a started rollout was reported as
        cancelled.
        """
        self._began = time.monotonic()
        self._enter(RolloutPhase.PLACE)
        try:
            grade = await self._run()
        except (asyncio.CancelledError, RunEndingError) as ending:
            if self._announced:
                await self.parts.observer.trajectory_finished(self.cancelled(ending))
            raise
        finally:
            self._enter(None)
        trajectory = self._trajectory(grade)
        if not self._announced:
            self.parts.observer.trajectory_started(self.key, "")
        await self.parts.observer.trajectory_finished(trajectory)
        return trajectory

    def cancelled(self, ending: BaseException) -> Trajectory:
        """Return the trajectory so far as cancelled by a cancellation, or an error that ends the run."""
        reason = str(ending) or "the run was stopped"
        self._outcome = replace(self._outcome, termination=TerminationReason.CANCELLED, error=reason)
        return self._trajectory(None)

    async def _run(self) -> Grade | None:
        try:
            async with self.parts.slots:
                self._spent("queue", time.monotonic() - self._began)
                await self.parts.policy.check(self.parts.prompt.declarations)
                await self._attempt_until_submitted()
        except (ObserverFailedError, RunEndingError):
            raise
        except Exception as error:
            _log.error("rollout failed unexpectedly", key=self.key, traceback=traceback.format_exc())
            self._failed(error)
        if self._own_doing:
            return Grade(verdict=Verdict.FAILED, reward=0.0, detail=self._outcome.error)
        if self._outcome.termination in INFRASTRUCTURE_REASONS:
            _log.warning("rollout excluded", key=self.key, error=self._outcome.error)
            return None
        if self._environment.grades_in_place:
            return self._grade
        if self._unpatchable:
            return Grade(verdict=Verdict.PATCH_FAILED, reward=0.0, detail=self._unpatchable)
        self._enter(RolloutPhase.GRADING)
        try:
            async with _Stopwatch(self._spent, "grading"):
                return await self._environment.grade(self._patch)
        except Exception as error:
            return self._lost_grade(error)

    def _lost_grade(self, error: Exception) -> Grade:
        _log.error("grading failed unexpectedly", key=self.key, traceback=traceback.format_exc())
        return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=describe_error(error))

    async def _attempt_until_submitted(self) -> None:
        """Attempt a rollout, and repeat it at the retry temperatures until the model submits."""
        await self._attempt_until_it_counts()
        for repetition, temperature in enumerate(self.parts.retry_temperatures, start=1):
            if self._own_doing or not self._is_repeated():
                return
            self._repetition, self._failures = repetition, []
            self._sampling = replace(self._sampling, temperature=temperature)
            await self._attempt_until_it_counts()

    def _is_repeated(self) -> bool:
        """Return whether the rollout is repeated after the last attempt's termination."""
        has_temperatures = self._repetition < len(self.parts.retry_temperatures)
        return has_temperatures and self._outcome.termination not in _NOT_REPEATED

    async def _attempt_until_it_counts(self) -> None:
        """Try fresh environments until the infrastructure works or ``decide`` ends the attempts."""
        while True:
            self._attempts += 1
            await self._attempt_undisturbed()
            if self._outcome.termination is not TerminationReason.ENV_ERROR:
                return
            self._failures.append(self._outcome.failure or "infrastructure")
            decision = decide(self._failures, retries=self.parts.environments.retries)
            if decision is Decision.COUNT:
                self._count_against_the_agent()
            if decision is not Decision.RETRY:
                return
            await asyncio.sleep(_RETRY_PAUSE_S * 2 ** len(self._failures))

    def restart(self) -> None:
        """Interrupt an attempt in progress; the next one waits for the gate and replays no turns."""
        self.recorded = None
        if self._interruption is not None:
            self._interruption.reschedule(asyncio.get_running_loop().time())

    async def _attempt_undisturbed(self) -> None:
        """Run an attempt; start over whenever ``restart`` interrupts it."""
        while True:
            await self.parts.gate.wait()
            try:
                async with asyncio.timeout(None) as self._interruption:
                    try:
                        return await self._attempt()
                    finally:
                        interruption, self._interruption = self._interruption, None
            except TimeoutError:
                if not interruption.expired():
                    raise

    def _count_against_the_agent(self) -> None:
        """Attribute the failure to the agent: its commands exhausted a fresh sandbox as well."""
        self._own_doing = True
        self._outcome = replace(
            self._outcome,
            termination=TerminationReason.ENV_TIMEOUT,
            error=own_doing(self._failures[-1], self._outcome.error),
        )

    async def _attempt(self) -> None:
        self._outcome, self._patch, self._unpatchable = _nothing(TerminationReason.CANCELLED), "", ""
        self._grade = None
        self._enter(RolloutPhase.SANDBOX)
        environment = self.parts.environments.make(
            self.key, self.row, seed=environment_seed(self.parts.seed, self.key)
        )
        self._environment = environment
        loop: AgentLoop | None = None
        try:
            async with _Stopwatch(self._spent, "sandbox"):
                sandbox_id = await environment.reset()
            self._enter(RolloutPhase.TOOLS)
            self._announced = True
            self.parts.observer.trajectory_started(self.key, sandbox_id)
            loop = await self._loop(environment)
            try:
                self._outcome = await loop.run()
            finally:
                self._release()
            if self._outcome.termination not in INFRASTRUCTURE_REASONS:
                async with _Stopwatch(self._spent, "sandbox"), asyncio.timeout(_PATCH_DEADLINE_S):
                    await self._take_patch(environment)
                if environment.grades_in_place and not self._is_repeated():
                    await self._grade_in_place(environment)
        except (SandboxError, TimeoutError) as error:
            self._failed(error)
        except BaseException:
            if loop is not None:
                self._outcome = loop.outcome(TerminationReason.CANCELLED)
            raise
        finally:
            self._spent("queue", environment.queue_seconds)
            self._spent("sandbox", -environment.queue_seconds)
            if (startup := environment.startup) is not None:
                self._spent("pull", startup.pull)
                self._spent("start", startup.start)
            await self._close(environment)

    def _release(self) -> None:
        """Add the attempt's cost and release the rollout in the policy."""
        cost = self.parts.policy.spent_on(self.key)
        if cost is not None:
            self._cost = (self._cost or 0.0) + cost
        self.parts.policy.release(self.key)

    async def _take_patch(self, environment: Environment) -> None:
        """Store the patch, or the reason why there is none, which counts against the agent."""
        try:
            self._patch = await environment.patch()
        except PatchError as error:
            self._unpatchable = str(error)

    async def _grade_in_place(self, environment: Environment) -> None:
        """Grade the attempt; where the sandbox fails, the whole attempt has failed."""
        self._enter(RolloutPhase.GRADING)
        async with _Stopwatch(self._spent, "grading"):
            try:
                grade = await environment.grade(self._patch)
            except (SandboxError, TimeoutError):
                raise
            except Exception as error:
                grade = self._lost_grade(error)
        details = [text for text in (grade.detail, self._unpatchable) if text]
        self._grade = replace(grade, detail="; ".join(details))

    async def _close(self, environment: Environment) -> None:
        try:
            async with _Stopwatch(self._spent, "sandbox"):
                await environment.close()
        except SandboxError as error:
            _log.warning(
                "closing a sandbox failed; the reaper will remove it", key=self.key, error=str(error)
            )

    async def _loop(self, environment: Environment) -> AgentLoop:
        parts = self.parts
        recorded = await asyncio.to_thread(self.recorded) if self.recorded is not None else ()
        self._recorded_cost = math.fsum(turn.step.cost or 0.0 for turn in recorded)
        return AgentLoop(
            environment=environment,
            policy=parts.policy,
            prompt=parts.prompt,
            config=parts.agent,
            key=self.key,
            row=self.row,
            sampling=self._sampling,
            seed_of_step=lambda step: step_seed(parts.seed, self.key, step, self._repetition),
            on_step=lambda turn: parts.observer.step_finished(self.key, turn),
            recorded=recorded,
            on_phase=self._enter,
        )

    def _failed(self, error: Exception) -> None:
        """Record an infrastructure failure; the steps made so far are kept."""
        self._outcome = replace(
            self._outcome,
            termination=TerminationReason.ENV_ERROR,
            error=describe_error(error),
            failure=kind_of(error),
        )
        self._patch = ""

    def _enter(self, phase: RolloutPhase | None) -> None:
        self.parts.observer.phase_changed(self.key, phase)

    def _spent(self, what: str, seconds: float) -> None:
        self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def _trajectory(self, grade: Grade | None) -> Trajectory:
        steps = self._outcome.steps
        return Trajectory(
            key=self.key,
            steps=steps,
            termination=self._outcome.termination,
            patch=self._patch,
            grade=grade,
            tokens=self._outcome.tokens,
            timings=Timings(
                queue=self._seconds.get("queue", 0.0),
                sandbox=self._seconds.get("sandbox", 0.0),
                pull=self._seconds.get("pull", 0.0),
                start=self._seconds.get("start", 0.0),
                model=sum(step.model_seconds for step in steps),
                tools=sum(step.tool_seconds for step in steps),
                grading=self._seconds.get("grading", 0.0),
                total=time.monotonic() - self._began,
            ),
            error=self._outcome.error,
            failure=self._outcome.failure,
            attempts=max(self._attempts, 1),
            prompt=self.parts.prompt.name,
            prompt_hash=self.parts.prompt.content_hash,
            opening=self._outcome.opening,
            cost=None if self._cost is None else self._cost + self._recorded_cost,
            replay=self._outcome.replay,
            findings=find_tampering(steps, self.row.answer) + (grade.findings if grade is not None else ()),
        )


def _nothing(termination: TerminationReason) -> AgentOutcome:
    return AgentOutcome(termination=termination, steps=(), tokens=TokenRecord())


class _Stopwatch:
    """Context manager that reports the duration of its block, also when the block raises."""

    def __init__(self, spent: Callable[[str, float], None], part: str) -> None:
        self._spent = spent
        self._part = part
        self._began = 0.0

    async def __aenter__(self) -> None:
        self._began = time.monotonic()

    async def __aexit__(self, *_error: object) -> None:
        self._spent(self._part, time.monotonic() - self._began)
