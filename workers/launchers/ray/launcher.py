"""Launcher of engines as jobs of a Ray cluster.

The submission id is the attempt's name, recorded before the job is submitted: an attempt has one job however
often it is submitted, and a worker that dies loses none. The host of such an attempt is the address of the
cluster's dashboard, so any worker can poll it.

Run folders must lie at the same path on the workers' machine and on the nodes (shared storage). The
engine writes ``engine.log`` and its spool there; what it spooled is taken from there when its node is gone.
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
from workers.launchers.base import PROJECT, SECRETS, LaunchOrder, ProcessReport, ProcessState, Recorder
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
"""Beginning of the line in which the start script says why. It need not be the last line of the log: Ray
writes the script there too, before or after the script's output."""
KILL_AFTER_S = 1
"""Time from SIGTERM to SIGKILL when a job is killed, seconds. Ray sends both to all processes of a job; an
orderly stop is asked for by the heartbeat's answer instead, which reaches the engine only."""
RETRY_AFTER_S = 5.0
"""Time for which a cluster that did not answer is not asked again: its runs must not delay other runs."""
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
        """Cluster that did not answer → when it is asked again (monotonic clock), and its error."""

    def check(self, run: AnyRun) -> None:
        """Compare what the run asks with what the cluster has."""
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
        """Submit the attempt's job; a cluster that does not answer is left to the reconciler."""
        address = _address(order.settings.ray)
        record(address, order.name)
        try:
            RayJobs(address).submit(_job(order))
        except ClusterUnreachableError:
            record(address, order.name)  # it may still take the job, and has the time for that from now on
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
        """Do nothing: the next heartbeat's answer tells the engine; a pending job has no process."""

    def kill(self, *, host: str, handle: str) -> None:
        """Have the cluster kill the job; no effect if the cluster does not answer.

        Ray ends a pending job only once it could start; the server then refuses it as fenced.
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
    """Translate the state of a job into a report."""
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
    wanted = dict(reservation(settings))
    environment = dict(settings.runtime_env)
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(KILL_AFTER_S), **environment.get("env_vars", {})}
    return {
        "submission_id": order.name,
        "entrypoint": start_script(order),
        "entrypoint_num_cpus": wanted.pop("CPU", 0),
        "entrypoint_num_gpus": wanted.pop("GPU", 0),
        "entrypoint_memory": int(wanted.pop("memory", 0)),
        "entrypoint_resources": wanted,
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
