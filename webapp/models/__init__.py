"""The tables, one module per feature. To add one: a module here, its names below, a migration."""

from __future__ import annotations

from webapp.models.accounts import ApiToken, SignIn
from webapp.models.alerts import Alert
from webapp.models.annotations import Annotation
from webapp.models.audit import AuditEntry
from webapp.models.datasets import Dataset, Task, TaskAnswer
from webapp.models.endpoints import Endpoint
from webapp.models.engines import EngineReport, EngineSample
from webapp.models.events import Event
from webapp.models.experiments import Experiment
from webapp.models.health import Proof, QuarantineDecision, Validation
from webapp.models.iterations import Checkpoint, Evaluation, Iteration
from webapp.models.runs import Run, RunAttempt
from webapp.models.sandboxes import Pool, Reaper, Sandbox
from webapp.models.scores import ExaminedTest, Score
from webapp.models.trajectories import (
    Group,
    ImportedFields,
    Step,
    TestLog,
    TestResult,
    TokenBlob,
    Trajectory,
    TrajectoryOpening,
)

__all__ = [
    "Alert",
    "Annotation",
    "ApiToken",
    "AuditEntry",
    "Checkpoint",
    "Dataset",
    "Endpoint",
    "EngineReport",
    "EngineSample",
    "Evaluation",
    "Event",
    "ExaminedTest",
    "Experiment",
    "Group",
    "ImportedFields",
    "Iteration",
    "Pool",
    "Proof",
    "QuarantineDecision",
    "Reaper",
    "Run",
    "RunAttempt",
    "Sandbox",
    "Score",
    "SignIn",
    "Step",
    "Task",
    "TaskAnswer",
    "TestLog",
    "TestResult",
    "TokenBlob",
    "Trajectory",
    "TrajectoryOpening",
    "Validation",
]
