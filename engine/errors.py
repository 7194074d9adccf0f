"""The engine's error tree.

    TrainyardError
    ├── ConfigError            the run's configuration is wrong (the user can fix it)
    ├── DatasetError           a dataset or one of its rows is wrong; names row and field
    ├── PreflightError         the machine lacks something; says what to do
    ├── FencedError            a newer attempt of this run exists; this process must end
    ├── SandboxError           a sandbox failed: infrastructure, never the agent's fault
    │   ├── SandboxQueueTimeoutError   no place in the pool in time
    │   ├── SandboxStartError
    │   │   ├── ImageError             the image is unavailable: missing, refused, or the pull failed
    │   │   │   └── ImageRemovedError  the image was removed from the container daemon
    │   │   └── SandboxStartTimeoutError
    │   ├── SandboxDiedError
    │   │   ├── SandboxMemoryError     the kernel killed it: out of memory
    │   │   └── SandboxEvictedError    the node or the cluster removed it
    │   ├── SandboxTransportError
    │   │   └── NoGreetingError        the agent did not greet in time
    │   ├── SandboxResourceError   the sandbox's disk or process limit broke the protocol itself
    │   └── HostError              a program beside the sandboxes is missing or too slow
    ├── RolloutsLostError      every requested rollout was lost to infrastructure
    ├── EarlyStopError         the first rollouts all failed in the same way, and so would the others
    ├── MissingScoreError      a rollout lacks a score that selection needs
    ├── PatchError             a patch does not apply
    ├── HostileInputError      a sandbox's output cannot be read within limits; counted against the agent
    ├── ModelError             the policy could not produce a completion
    │   ├── ContextLengthError     the prompt does not fit into the model's context
    │   └── EngineError            an inference server failed a request; says how, keeps the partial tokens
    ├── PublicationError       no engine was verified to serve the published weights
    ├── RunEndingError         a condition that affects every rollout: the run ends at once
    │   ├── EndpointRefusedError   an endpoint refuses the run's requests: key, quota, model
    │   ├── SpendLimitError        an endpoint's spend limit is reached
    │   └── WorkersLostError       rollout workers do not start, or end repeatedly
    ├── ScoreError             a verifier could not score a trajectory
    ├── CheckpointError        a checkpoint is missing, incomplete or of another model
    └── TrainerError           an update failed, or a rank of the trainer ended
        ├── UpdateAbandonedError   an update was abandoned on request; the trainer cannot continue
        └── RankLostError          a rank was killed or its node lost: another attempt may resume

A command that fails, times out or prints too much is not an error: it is an ``ExecResult``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal


class TrainyardError(Exception):
    """Base class of the engine's errors."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a configuration."""

    message: str
    """Problem and remedy, without the setting's name."""
    setting: str = ""
    """Dotted name of the setting to change; empty when no single setting is to blame."""

    def __str__(self) -> str:
        return f"{self.setting}: {self.message}" if self.setting else self.message


class ConfigError(TrainyardError):
    """The run's configuration is wrong; the message lists every problem.

    Args:
        problems: problems; a text is a problem of no single setting.
    """

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(Problem(item) if isinstance(item, str) else item for item in problems)
        super().__init__("; ".join(map(str, self.problems)))


class DatasetError(TrainyardError):
    """A dataset is missing or malformed.

    Args:
        message: problem and remedy.
        row: zero-based row number, where one row is to blame.
        field: the field of that row.
    """

    def __init__(self, message: str, *, row: int | None = None, field: str | None = None) -> None:
        self.row = row
        self.field = field
        where = "".join(
            part
            for part in (
                f" (row {row}" if row is not None else "",
                f", field '{field}'" if row is not None and field else "",
                ")" if row is not None else "",
            )
        )
        super().__init__(f"{message}{where}")


class PreflightError(TrainyardError):
    """The machine lacks something the run needs; the message says how to provide it."""


class NodeLostError(PreflightError):
    """The machine on which a process was to start was lost before."""


class FencedError(TrainyardError):
    """A newer attempt (a higher epoch) of this run exists; this process must stop writing."""


class SandboxError(TrainyardError):
    """Infrastructure failed, not the agent: never a reward of 0."""

    kind: ClassVar[str] = "infrastructure"
    """Name under which failures are counted and displayed."""


class SandboxQueueTimeoutError(SandboxError):
    """The pool had no place for the sandbox before its queue timeout."""

    kind = "queue_timeout"


class SandboxStartError(SandboxError):
    """The sandbox did not start."""

    kind = "start"


class ImageError(SandboxStartError):
    """The image is missing, its registry refused it, or pulling it failed; the message names the image."""

    kind = "image"


class ImageRemovedError(ImageError):
    """The image is no longer present at the container daemon; it can be fetched again."""


class SandboxStartTimeoutError(SandboxStartError):
    """The sandbox did not become ready in time (image pull excluded)."""

    kind = "start_timeout"


class SandboxDiedError(SandboxError):
    """The sandbox or the agent process inside it ended while it was in use."""

    kind = "died"


class SandboxMemoryError(SandboxDiedError):
    """The kernel killed the sandbox because it exceeded its memory limit."""

    kind = "memory"


class SandboxEvictedError(SandboxDiedError):
    """The node or the cluster removed the sandbox: eviction, preemption, a lost node."""

    kind = "evicted"


class SandboxTransportError(SandboxError):
    """The byte stream to the in-sandbox agent broke or carried malformed data."""

    kind = "transport"


class NoGreetingError(SandboxTransportError):
    """The in-sandbox agent sent no greeting in time."""


class SandboxResourceError(SandboxError):
    """A limit of the sandbox made the protocol itself impossible (e.g. no process slot left)."""

    kind = "resource"


class HostError(SandboxError):
    """A program that the engine runs on its own machine is missing, or the machine is too slow for it."""


class RolloutsLostError(TrainyardError):
    """Infrastructure failures lost every rollout of a collection; its metrics would be meaningless."""


class EarlyStopError(TrainyardError):
    """The first rollouts all failed in the same way; the message has the cause and the setting to change."""


class MissingScoreError(TrainyardError):
    """A rollout lacks a score that selection needs: never counted as 0.

    Args:
        field: name of the missing score.
        purpose: selection that needs the score.
        example: a rollout without the score.
        num_missing: number of rollouts without the score.
        num_rollouts: number of rollouts examined.
    """

    def __init__(self, field: str, purpose: str, example: str, num_missing: int, num_rollouts: int) -> None:
        self.field = field
        self.num_missing = num_missing
        super().__init__(
            f"{num_missing} of {num_rollouts} rollouts have no {field}, such as {example}; {purpose} needs "
            "it of all; compute the missing scores, or leave these rollouts out"
        )


class PatchError(TrainyardError):
    """A patch does not apply to the tree it was given for."""


class HostileInputError(TrainyardError):
    """Output of a sandbox cannot be read within limits on time and memory; counted against the agent."""


class SlowInputError(HostileInputError):
    """Reading the output took more than its limit of processor time."""


class ModelError(TrainyardError):
    """The policy could not produce a completion."""


class ContextLengthError(ModelError):
    """The prompt does not fit into the model's context: a limit of the rollout, not infrastructure."""


class EngineError(ModelError):
    """An inference server failed a request.

    Args:
        message: what happened, with the server's address.
        kind: ``lost`` (the server ended, did not start or cut the connection), ``stalled`` (no token in
            time), ``garbage`` (its answer is impossible), ``refused`` (it declined the request: a retry would
            fail too), ``unloaded`` (it was restarted and does not serve the requested model or adapter),
            ``aborted`` (a pause ended the request; the server is healthy).
        tokens: the ``engine.inference.base.Generation`` received before the failure; None without a token.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: Literal["lost", "stalled", "garbage", "refused", "unloaded", "aborted"],
        tokens: Any = None,
    ) -> None:
        self.kind = kind
        self.tokens = tokens
        super().__init__(message)


class PublicationError(TrainyardError):
    """No engine was verified to serve the published weights."""


class RunEndingError(TrainyardError):
    """A condition that affects every rollout: the run ends at once."""


class EndpointRefusedError(RunEndingError):
    """An endpoint refuses the run's requests or answers with another model; the message says why."""


class SpendLimitError(RunEndingError):
    """An endpoint's spend limit is reached; the run ends as stopped."""


class WorkersLostError(RunEndingError):
    """Rollout workers do not start, or end repeatedly; the message says how the last one ended."""


class ScoreError(TrainyardError):
    """A verifier could not score a trajectory; that is never a score of 0.

    Args:
        message: the reason.
        retry: False where another attempt would fail in the same way.
    """

    def __init__(self, message: str, *, retry: bool = True) -> None:
        self.retry = retry
        super().__init__(message)


class CheckpointError(TrainyardError):
    """A checkpoint is missing, incomplete or belongs to another model."""


class TrainerError(TrainyardError):
    """An update failed or a rank of the trainer ended; the message says which and why."""


class UpdateAbandonedError(TrainerError):
    """An update was abandoned on request; some of its optimizer steps may have been made."""


class RankLostError(TrainerError):
    """A rank of the trainer was lost to infrastructure: another attempt can resume from the checkpoint."""


def describe_error(error: BaseException) -> str:
    """Return class and message of an error."""
    return f"{type(error).__name__}: {error}"
