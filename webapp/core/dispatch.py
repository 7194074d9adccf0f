"""Sending of Celery tasks: by name, on commit, without failing the caller.

``workers`` implements the tasks. Postgres is authoritative, the queue is not: messages are lost while Redis
is down, and the reconciler sends them again. To add a task, add a name here and a function to
``workers.app``.
"""

from __future__ import annotations

import contextlib
import logging
from enum import StrEnum
from functools import lru_cache
from typing import Any

import kombu.exceptions
import redis.exceptions
from celery import Celery
from django.conf import settings
from django.core.cache import cache
from django.db import transaction

log = logging.getLogger(__name__)


class TaskName(StrEnum):
    """Names of the workers' tasks; every task takes ids and may be sent twice."""

    LAUNCH_RUN = "trainyard.launch_run"
    STOP_RUN = "trainyard.stop_run"
    RECONCILE = "trainyard.reconcile"
    REAP = "trainyard.reap"
    SYNC_DATASET = "trainyard.sync_dataset"
    SCAN = "trainyard.scan"
    JUDGE = "trainyard.judge"
    WATCH = "trainyard.watch"
    NOTIFY = "trainyard.notify"
    DELETE_RUN = "trainyard.delete_run"


_PRIORITIES = dict.fromkeys((TaskName.NOTIFY, TaskName.DELETE_RUN), 6) | dict.fromkeys(
    (TaskName.SCAN, TaskName.JUDGE, TaskName.WATCH), 9
)
"""By Redis's order: 9 is the lowest priority, 0 the highest and that of the other tasks."""
_SCAN_WAITS = "scan-waits"
"""Key in the cache while a sent scan has not begun."""
_LOST_S = 60
"""Time after which a scan that has not begun counts as lost, seconds."""


@lru_cache
def _producer() -> Celery:
    app = Celery("trainyard", broker=settings.CELERY_BROKER_URL, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        broker_connection_timeout=2,
        broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 2, "max_retries": 0},
    )
    return app


def send(name: TaskName, *arguments: int | str) -> None:
    """Send a task now; an unreachable broker is logged, not raised.

    A scan is sent unless one is waiting: every batch of a run with ended rollouts asks for one.
    """
    try:
        if name == TaskName.SCAN and not cache.add(_SCAN_WAITS, 1, timeout=_LOST_S):
            return
        _producer().send_task(name, args=list(arguments), retry=False, priority=_PRIORITIES.get(name, 0))
    except (kombu.exceptions.OperationalError, redis.exceptions.RedisError, OSError) as error:
        if name == TaskName.SCAN:
            scan_begun()
        log.warning("task %s%r was not sent, the reconciler will: %s", name.value, arguments, error)


def scan_begun() -> None:
    """Note that a scan begins: rollouts that end from now on need another one."""
    with contextlib.suppress(redis.exceptions.RedisError):
        cache.delete(_SCAN_WAITS)


def send_on_commit(name: TaskName, *arguments: Any) -> None:
    """Send a task after the surrounding transaction is committed (immediately outside of one)."""
    transaction.on_commit(lambda: send(name, *arguments))
