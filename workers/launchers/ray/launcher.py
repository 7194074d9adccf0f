"""Launcher of engines as jobs of a Ray cluster.

The submission id is the attempt's name, recorded before the job is submitted. An attempt submitted twice
therefore has one job, and a worker that dies loses none. The host of an attempt is the address of the
cluster's dashboard, so any worker can poll it.

Run folders must have the same path on the workers' machine and on the nodes (shared storage). The engine
writes ``engine.log`` and its spool there; the workers read the spool from there if a node is lost.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from typing import Any

from django.conf import settings as site

from engine.config.launcher import RayConfig
from engine.config.placement import run_bundles
from engine.config.run import AnyRun
from engine.errors import ConfigError, Problem
from webapp.supervisor.engine_process import SECRETS
from workers.launchers.base import PROJECT, LaunchOrder, ProcessReport, ProcessState, Recorder
from workers.launchers.ray.jobs import (
    ADDRESS_VARIABLE,
    ENTRYPOINT_FAILED,
    TOKEN_VARIABLE,
    ClusterRefusedError,
    ClusterUnreachableError,
    Job,
    RayJobs,
)
from workers.launchers.ray.preflight import missing, reservation, unreachable_web

log = logging.getLogger(__name__)

NODE_UNFIT = 78
"""Exit code of the start script on a node that cannot run the engine."""
UNFIT = "trainyard: "
"""Beginning of the start script's error line. It need not be the last line of the log: Ray writes the script
itself to the log too, before or after the script's output."""
KILL_AFTER_S = 1
"""Time from SIGTERM to SIGKILL when a job is killed, seconds. Ray sends both to all processes of a job; an
orderly stop is requested in the heartbeat's response instead, which only the engine receives."""
RETRY_AFTER_S = 5.0
"""Time without requests to a cluster that did not answer, seconds: its runs must not delay other runs."""
_STATES = {"PENDING": ProcessState.PENDING, "RUNNING": ProcessState.ALIVE}

SCRIPT = """\
unfit() {{ echo "{marker}node $(hostname): $1" >&2; exit {unfit}; }}
[ -r {run_dir}/launch.json ] || unfit "there is no {run_dir}: the data folder must be storage that the \
workers' machine and the nodes share, at the same path"
cd {project} || unfit "there is no {project}: install Trainyard there or set launcher.ray.project"
{python} -c 'import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))' || unfit "{python} is not \
Python {major}.{minor}, which the workers have: set launcher.ray.python"
exec env {unset} {python} -m engine.run --secrets-from-server {run_dir} >>{run_dir}/engine.log 2>&1 </dev/null
"""


class RayLauncher:
    """Launcher of jobs on Ray clusters; the handle is the submission id."""

    def __init__(self) -> None:
        self._retry_at: dict[str, tuple[float, str]] = {}
        """Address of a cluster that did not answer → time of the next request (monotonic clock), error."""

    def check(self, run: AnyRun) -> None:
        """Compare the requested resources with those of the cluster."""
        settings = run.launcher.ray
        address = _address(settings)
        if problem := unreachable_web(site.TRAINYARD_WEB_URL, address):
            raise ConfigError(problem)
        try:
            cluster = RayJobs(address).cluster()
        except (ClusterUnreachableError, ClusterRefusedError) as error:
            raise ConfigError(Problem(str(error), "launcher.ray.address")) from error
        if problems := missing(settings, cluster, run_bundles(run, cluster_has_gpus=cluster.has_gpus)):
            raise ConfigError(*problems)

    def launch(self, order: LaunchOrder, record: Recorder) -> None:
        """Submit the attempt's job; if the cluster does not answer, the reconciler handles the attempt."""
        address = _address(order.settings.ray)
        record(address, order.name)
        try:
            RayJobs(address).submit(_job(order))
        except ClusterUnreachableError:
            record(address, order.name)  # the cluster may still accept the job: its grace time starts now
        except ClusterRefusedError as error:
            raise ConfigError(Problem(str(error), "launcher.ray")) from error

    def poll(self, *, host: str, handle: str) -> ProcessReport:
        """Return the state of the job."""
        retry_at, error = self._retry_at.get(host, (0.0, ""))
        if time.monotonic() < retry_at:
            return ProcessReport(ProcessState.DISCONNECTED, error)
        try:
            job = RayJobs(host).find(handle)
        except (ClusterUnreachableError, ClusterRefusedError) as failure:
            self._retry_at[host] = (time.monotonic() + RETRY_AFTER_S, str(failure))
            return ProcessReport(ProcessState.DISCONNECTED, str(failure))
        if job is None:
            return ProcessReport(
                ProcessState.MISSING, f"the Ray cluster at {host} has no job {handle}: it was restarted"
            )
        return report_of(job)

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Do nothing: the response to the next heartbeat stops the engine; a pending job has no process."""

    def kill(self, *, host: str, handle: str) -> None:
        """Request the end of the job from the cluster; no effect if the cluster does not answer.

        Ray ends a pending job only once it could start; the server then refuses its events as fenced.
        """
        try:
            RayJobs(host).stop(handle)
        except (ClusterUnreachableError, ClusterRefusedError) as error:
            log.warning("job %s was not ended: %s", handle, error)


def _address(settings: RayConfig) -> str:
    address = settings.address or os.environ.get(ADDRESS_VARIABLE, "")
    if not address:
        raise ConfigError(
            Problem(
                f"no Ray cluster is known: set it to http://HOST:8265, or {ADDRESS_VARIABLE} of the workers",
                "launcher.ray.address",
            )
        )
    return address.rstrip("/")


def report_of(job: Job) -> ProcessReport:
    """Convert the state of a job to a report."""
    state = _STATES.get(job.status, ProcessState.DEAD)
    if state is ProcessState.PENDING:
        return ProcessReport(state, f"the Ray cluster has not started the job yet: {job.message}")
    if job.error_type != ENTRYPOINT_FAILED:
        return ProcessReport(state, "" if state is ProcessState.ALIVE else job.message)
    reasons = [line.removeprefix(UNFIT) for line in job.message.splitlines() if line.startswith(UNFIT)]
    return ProcessReport(state, reasons[-1] if reasons else "")


def _job(order: LaunchOrder) -> dict[str, Any]:
    """Return the body of the request that submits an attempt."""
    settings = order.settings.ray
    resources = dict(reservation(settings))
    environment = dict(settings.runtime_env)
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(KILL_AFTER_S), **environment.get("env_vars", {})}
    return {
        "submission_id": order.name,
        "entrypoint": start_script(order),
        "entrypoint_num_cpus": resources.pop("CPU", 0),
        "entrypoint_num_gpus": resources.pop("GPU", 0),
        "entrypoint_memory": int(resources.pop("memory", 0)),
        "entrypoint_resources": resources,
        "runtime_env": environment | {"env_vars": variables},
    }


def start_script(order: LaunchOrder) -> str:
    """Return the shell command of an attempt's job."""
    settings = order.settings.ray
    withheld = SECRETS - {TOKEN_VARIABLE} if order.uses_cluster else SECRETS
    return SCRIPT.format(
        unfit=NODE_UNFIT,
        marker=UNFIT,
        run_dir=shlex.quote(str(order.run_dir)),
        project=shlex.quote(settings.project or str(PROJECT)),
        python=shlex.quote(settings.python or sys.executable),
        major=sys.version_info.major,
        minor=sys.version_info.minor,
        unset=" ".join(f"-u {name}" for name in sorted(withheld)),
    )
