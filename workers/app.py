"""Celery application: ``celery -A workers.app worker`` and ``… beat``.

Every task takes ids, is short and may run twice: the services claim by conditional update. To add a task, add
a name to ``webapp.core.dispatch.TaskName`` and a function here that calls one service or module.
"""

from __future__ import annotations

import os

import django
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
django.setup()

from django.conf import settings  # noqa: E402  (needs the app registry)

from engine.errors import DatasetError  # noqa: E402
from webapp.core.dispatch import TaskName, scan_begun, send  # noqa: E402
from webapp.datasets.services import datasets  # noqa: E402
from webapp.notifications.services import delivery  # noqa: E402
from webapp.rollouts.services import hacking, passages, scans  # noqa: E402
from webapp.runs.services import deletion  # noqa: E402
from workers import judging, lifecycle, reaper, reconciler  # noqa: E402

RECONCILE_EVERY_S = 3.0
REAP_EVERY_S = 30.0
SCAN_EVERY_S = 300.0
NOTIFY_EVERY_S = 30.0
TASK_LIMIT_S = 120.0
"""Scanners, index and notifications take a few seconds, a model up to 90; the process of a longer task is
ended."""

app = Celery("trainyard", broker=settings.CELERY_BROKER_URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,  # a fetched task would no longer give way to one of higher priority
    worker_cancel_long_running_tasks_on_connection_loss=False,
    timezone="UTC",
    # Beat's own tasks expire before the next one, so that an outage leaves no backlog.
    beat_schedule={
        "reconcile": {
            "task": TaskName.RECONCILE.value,
            "schedule": RECONCILE_EVERY_S,
            "options": {"expires": RECONCILE_EVERY_S},
        },
        "reap": {
            "task": TaskName.REAP.value,
            "schedule": REAP_EVERY_S,
            "options": {"expires": REAP_EVERY_S},
        },
        "notify": {
            "task": TaskName.NOTIFY.value,
            "schedule": NOTIFY_EVERY_S,
            "options": {"expires": NOTIFY_EVERY_S},
        },
        "scan": {
            "task": TaskName.SCAN.value,
            "schedule": SCAN_EVERY_S,
            "options": {"expires": SCAN_EVERY_S},
        },
        "judge": {
            "task": TaskName.JUDGE.value,
            "schedule": SCAN_EVERY_S,
            "options": {"expires": SCAN_EVERY_S},
        },
    },
)


@app.task(name=TaskName.LAUNCH_RUN.value)
def launch_run(run_id: int) -> None:
    """Start the process of a queued run."""
    lifecycle.launch(run_id=run_id)


@app.task(name=TaskName.STOP_RUN.value)
def stop_run(run_id: int) -> None:
    """Ask the process of a stopping run to end."""
    lifecycle.ask_to_stop(run_id=run_id)


@app.task(name=TaskName.RECONCILE.value)
def reconcile() -> None:
    """Reconcile the state of runs with their processes."""
    reconciler.reconcile()


@app.task(name=TaskName.REAP.value)
def reap() -> None:
    """Remove orphaned sandboxes."""
    reaper.reap()


@app.task(
    name=TaskName.SYNC_DATASET.value, autoretry_for=(DatasetError,), max_retries=3, default_retry_delay=2
)
def sync_dataset(name: str, run_id: int | None = None) -> None:
    """Mirror a dataset folder in Postgres."""
    datasets.sync(name=name, run_id=run_id)


@app.task(name=TaskName.SCAN.value, time_limit=TASK_LIMIT_S)
def scan() -> None:
    """Scan and index finished trajectories for a few seconds; send the task again if there is more."""
    scan_begun()
    is_left = [work() for work in (scans.scan_pending, passages.index_pending)]
    if any(is_left):
        send(TaskName.SCAN)


@app.task(name=TaskName.JUDGE.value, time_limit=TASK_LIMIT_S)
def judge() -> None:
    """Ask models about some finished trajectories; send the task again if there is more."""
    if judging.judge_pending():
        send(TaskName.JUDGE)


@app.task(name=TaskName.NOTIFY.value, time_limit=TASK_LIMIT_S)
def notify() -> None:
    """Send due messages about runs for a few seconds, and send the task again if there may be more."""
    delivery.sweep()


@app.task(name=TaskName.WATCH.value)
def watch(run_id: int) -> None:
    """Raise alerts about counters of reward hacking that rise with the reward."""
    hacking.watch(run_id=run_id)


@app.task(name=TaskName.DELETE_RUN.value)
def delete_run(run_id: int) -> None:
    """Delete rows of an archived run for a few seconds, and send the task again if there are more."""
    deletion.sweep(run_id=run_id)
