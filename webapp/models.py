"""All tables, for Django. To add one: a class in its room's ``models``, its name below, a migration."""

from __future__ import annotations

from webapp.accounts.models import ApiToken, RunQuota, SignIn
from webapp.core.models.audit import AuditEntry
from webapp.datasets.models.datasets import Dataset, Task, TaskAnswer
from webapp.datasets.models.health import Proof, QuarantineDecision, Validation
from webapp.endpoints.models import Endpoint
from webapp.experiments.models import Experiment
from webapp.notifications.models import Delivery, Notification
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.judgements import Judgement
from webapp.rollouts.models.passages import Passage
from webapp.rollouts.models.regrades import Regrade
from webapp.rollouts.models.scans import EnteredScanner, Scan
from webapp.rollouts.models.scores import ExaminedTest, Score
from webapp.rollouts.models.searches import SavedSearch
from webapp.rollouts.models.trajectories import (
    Group,
    ImportedFields,
    Step,
    TestLog,
    TestResult,
    TokenBlob,
    TokenTrace,
    Trajectory,
    TrajectoryOpening,
)
from webapp.runs.models.alerts import Alert
from webapp.runs.models.engines import EngineReport, EngineSample
from webapp.runs.models.events import Event
from webapp.runs.models.iterations import Checkpoint, Evaluation, Iteration
from webapp.runs.models.recipes import SavedRecipe
from webapp.runs.models.run_views import RunView
from webapp.runs.models.runs import Run, RunAttempt
from webapp.sandboxes.models import Pool, Reaper, Sandbox

__all__ = [
    "Alert",
    "Annotation",
    "ApiToken",
    "AuditEntry",
    "Checkpoint",
    "Dataset",
    "Delivery",
    "Endpoint",
    "EngineReport",
    "EngineSample",
    "EnteredScanner",
    "Evaluation",
    "Event",
    "ExaminedTest",
    "Experiment",
    "Group",
    "ImportedFields",
    "Iteration",
    "Judgement",
    "Notification",
    "Passage",
    "Pool",
    "Proof",
    "QuarantineDecision",
    "Reaper",
    "Regrade",
    "Run",
    "RunAttempt",
    "RunQuota",
    "RunView",
    "Sandbox",
    "SavedRecipe",
    "SavedSearch",
    "Scan",
    "Score",
    "SignIn",
    "Step",
    "Task",
    "TaskAnswer",
    "TestLog",
    "TestResult",
    "TokenBlob",
    "TokenTrace",
    "Trajectory",
    "TrajectoryOpening",
    "Validation",
]
