"""Engine process: ``python -m engine.run <run-dir>``, or a recipe without a web application.

    python -m engine.run .trainyard/runs/r1
    python -m engine.run --recipe quickstart-oracle --set rollout.group_size=1 --home .trainyard
    python -m engine.run --recipe qwen3-4b-lora-24gb --dry-run

A run folder holds ``config.json`` (the resolved configuration) and ``launch.json`` (identity, epoch,
destination of events). Heartbeats start before anything heavy is imported. Logs are JSON lines on stderr.
On SIGQUIT the stacks of all threads are written there, even if the process hangs.
Exit codes: 0 succeeded or stopped, 1 failed, 3 fenced by a newer attempt, 4 lost to infrastructure: another
attempt resumes the run.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.algorithms.lint import lint
from engine.config.access.downloads import HubLimits, with_token
from engine.config.access.places import Allowed, places
from engine.config.base import parse_settings
from engine.config.contradictions import LintFinding
from engine.config.dry_run import dry_run_settings
from engine.config.recipes import resolve
from engine.config.run import AnyRun, TrainRun, check_places, load_run_config, with_registries
from engine.errors import ConfigError, FencedError, Problem, TrainyardError
from engine.events.delivery.console import ConsoleSink
from engine.events.delivery.control import Control, Heartbeat
from engine.events.delivery.shipper import Shipper
from engine.events.delivery.sink import EventSink
from engine.events.delivery.spool import SpoolSink
from engine.files import atomic_write
from engine.inference.endpoint.keys import fetch_secrets, read_secrets, take_keys
from engine.orchestrator import EXIT_FAILED, EXIT_FENCED, execute, note_failure, record
from engine.orchestrator.context import RunContext, RunResult
from engine.processes.disk import DiskWatch
from engine.processes.memory import limit_memory
from engine.ray.cluster import take_token
from engine.redaction import RedactingStream, add_secrets, log_to, machine_secrets, secrets_in
from engine.storage.attempt import StartedAttempt, start_attempt
from engine.terminal import visible_text
from engine.threads import waiting_threads

CONFIG_NAME, LAUNCH_NAME, LOG_NAME = "config.json", "launch.json", "engine.log"
DRAIN_S = 30.0
"""Maximum time a finished run waits for the server to accept its last events, seconds; the spool keeps
them."""
DRAIN_STOPPED_S = 3.0
"""The same limit for a run that was told to stop."""

_CHATTY = ("torch.utils._pytree", "torchao")
"""Loggers whose import warnings no user can act on; pages show the log's last line if the process died."""

log = structlog.get_logger("run")


class Launch(BaseModel):
    """Content of ``launch.json``: identity of this attempt and destination of its events."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)
    run_id: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    epoch: int = Field(ge=1)
    ingest_url: str | None
    token: str
    home: Path
    acked_seq: int = Field(default=0, ge=0)
    """Last event of the run on the server."""
    allowed: Allowed | None = None
    """Resources that the configuration may access; None allows everything, for runs started from a shell."""

    @classmethod
    def load(cls, run_dir: Path) -> Launch:
        """Load ``launch.json`` from a run folder. Raises ConfigError."""
        try:
            return cls.model_validate_json((run_dir / LAUNCH_NAME).read_text())
        except OSError as error:
            raise ConfigError(f"{run_dir} is not a run folder: {error}") from error
        except ValidationError as error:
            raise ConfigError(f"{run_dir / LAUNCH_NAME}: {error}") from error

    def endpoint(self, name: str) -> str:
        """Return the URL of one of the run's ingest endpoints."""
        return f"{(self.ingest_url or '').rstrip('/')}/api/v1/runs/{self.run_id}/{name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parse(arguments)
    with (
        contextlib.redirect_stdout(RedactingStream(sys.stdout)),
        contextlib.redirect_stderr(RedactingStream(sys.stderr)),
    ):
        return _main(options)


def _main(options: argparse.Namespace) -> int:
    for library in _CHATTY:
        logging.getLogger(library).setLevel(logging.ERROR)
    os.environ |= waiting_threads()
    faulthandler.register(signal.SIGQUIT, file=2)  # 2: the redacting stream has no descriptor
    try:
        if options.secrets_on_stdin:
            read_secrets()
        take_keys()
        take_token()
        if options.recipe:
            run_dir = create_run_dir(
                options.recipe, parse_settings(options.set), home=options.home, dry=options.dry_run
            )
            for finding in _warnings(load_run_config(run_dir / CONFIG_NAME)):
                print(f"warning: {finding.setting}: {finding.message}", file=sys.stderr)
            print(f"run folder {run_dir}", flush=True)
            with (run_dir / LOG_NAME).open("a") as stream:
                log_to(stream)
                return run_attempt(run_dir, Launch.load(run_dir), console=sys.stdout)
        log_to(sys.stderr)
        launch = Launch.load(options.run_dir)
        if options.secrets_from_server:
            fetch_secrets(launch.endpoint("secrets"), launch.token)
        return run_attempt(options.run_dir, launch)
    except TrainyardError as error:
        print(visible_text(f"error: {error}"), file=sys.stderr)
        return EXIT_FENCED if isinstance(error, FencedError) else EXIT_FAILED
    except Exception:
        traceback.print_exc()  # here, where standard error is redacted
        return EXIT_FAILED


def create_run_dir(recipe: str, overrides: dict[str, Any], *, home: Path, dry: bool = False) -> Path:
    """Create a run folder for a recipe that runs without a web application.

    Args:
        recipe: name of the recipe.
        overrides: settings by dotted name.
        home: the data folder.
        dry: a dry run (``engine.config.dry_run``) with a tiny model in the run folder.

    Raises:
        ConfigError: a setting is wrong, or the recipe has no dry run.
        CheckpointError: the model is unknown, or cannot be trained here.
    """
    config = resolve(recipe, overrides)
    run_id = f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    run_dir = home.resolve() / "runs" / run_id
    if dry:
        tiny = run_dir / "tiny-model"
        settings = dry_run_settings(config, checkpoint=tiny, datasets=home.resolve() / "datasets")
        _write_tiny_model(config, tiny, home)
        config = resolve(recipe, {**settings, **overrides, "policy.checkpoint": str(tiny)})
    if config.launcher.backend != "local":
        message = "has no effect without the web application and its workers: leave it out"
        raise ConfigError(Problem(message, "launcher.backend"))
    run_dir.mkdir(parents=True, exist_ok=dry)
    atomic_write(run_dir / CONFIG_NAME, config.model_dump_json(indent=2) + "\n")
    launch = Launch(run_id=run_id, epoch=1, ingest_url=None, token="", home=home.resolve())
    atomic_write(run_dir / LAUNCH_NAME, launch.model_dump_json(indent=2) + "\n")
    return run_dir


def _write_tiny_model(config: AnyRun, folder: Path, home: Path) -> None:
    from engine.models.published.tiny import write_tiny_model  # transformers takes seconds to import

    assert isinstance(config, TrainRun)
    write_tiny_model(config.policy.checkpoint, folder, home=home)


def run_attempt(run_dir: Path, launch: Launch, *, console: TextIO | None = None) -> int:
    """Run one attempt in ``run_dir``, with spool, shipper, heartbeat and signal handling.

    Raises:
        PreflightError: another process is running the folder.
        FencedError: the spool already belongs to a newer attempt.
    """
    structlog.contextvars.bind_contextvars(run_id=launch.run_id, epoch=launch.epoch)
    add_secrets((launch.token, *machine_secrets(os.environ, home=launch.home)))
    control = Control()
    control.stop_on_signals()
    with contextlib.ExitStack() as stack:
        heartbeat = stack.enter_context(_heartbeat(launch, control))
        attempt, refusal = _begin_storage(run_dir, launch)
        spool = stack.enter_context(
            contextlib.closing(SpoolSink(run_dir, epoch=launch.epoch, after_seq=launch.acked_seq))
        )
        control.on_fence(spool.fence)
        sink: EventSink = ConsoleSink(spool, console) if console else spool
        run = RunContext(
            run_id=launch.run_id,
            epoch=launch.epoch,
            run_dir=run_dir,
            home=launch.home,
            sink=sink,
            control=control,
            is_relaunched=launch.ingest_url is not None,
        )
        if refusal is not None:
            return record(run, RunResult(state="failed", reason=str(refusal)))
        mirror = attempt.mirror(spool, on_fenced=control.fence) if attempt else None
        if mirror is not None:
            stack.callback(mirror.close)
        if heartbeat is None:
            return _perform(run, launch.allowed)
        heartbeat.last_seq = lambda: spool.last_seq
        shipper = Shipper(
            spool,
            url=launch.endpoint("events"),
            token=launch.token,
            on_fenced=control.fence,
            durable=mirror.wait_durable if mirror else None,
        )
        stack.callback(shipper.close)
        control.watch_failure(lambda: shipper.failure)
        code = _perform(run, launch.allowed)
        if mirror is not None:
            mirror.close()
        return _deliver(run, shipper, code)


def _begin_storage(run_dir: Path, launch: Launch) -> tuple[StartedAttempt | None, ConfigError | None]:
    """Restore the run folder from its store, if it has one; return a refusal to be recorded, if any.

    Other configuration errors are reported when the run is performed.
    """
    try:
        config = load_run_config(run_dir / CONFIG_NAME)
        config = check_places(config, launch.allowed) if launch.allowed is not None else config
    except ConfigError:
        return None, None
    if not config.storage.url:
        return None, None
    try:
        attempt = start_attempt(
            config.storage, run_dir, run_id=launch.run_id, epoch=launch.epoch, acked_seq=launch.acked_seq
        )
        return attempt, None
    except ConfigError as error:
        return None, error


def _perform(run: RunContext, allowed: Allowed | None) -> int:
    try:
        config = load_run_config(run.run_dir / CONFIG_NAME)
        limits = HubLimits(max_gb=config.downloads.max_gb)
        if allowed is not None:
            config = with_registries(check_places(config, allowed), allowed)
            limits.token_models = with_token(allowed.hub_models)
            limits.token_datasets = with_token(allowed.hub_datasets)
        limits.impose()
        add_secrets(secret for path in _credential_files(config) for secret in secrets_in(path))
    except ConfigError as error:
        return record(run, RunResult(state="failed", reason=str(error)))
    for finding in _warnings(config):
        log.warning("setting", setting=finding.setting, message=finding.message)
    with DiskWatch(run.run_dir, config.disk_gb * 1e9, run.control.stop):
        return execute(config, run)


def _warnings(config: AnyRun) -> list[LintFinding]:
    """Return warnings for the author of a configuration before the run starts."""
    return lint(config) if isinstance(config, TrainRun) else []


def _credential_files(config: AnyRun) -> list[Path]:
    """Return the credentials files named by a configuration."""
    names = ("sandbox.docker.registry_config", "sandbox.kubernetes.kubeconfig")
    return [Path(setting.value) for setting in places(config) if setting.name in names and setting.value]


def _deliver(run: RunContext, shipper: Shipper, code: int) -> int:
    """Ship the remaining events and return the attempt's exit code."""
    timeout_s = DRAIN_STOPPED_S if run.control.stop_reason else DRAIN_S
    delivered = code != EXIT_FENCED and shipper.drain(timeout_s)
    if code == EXIT_FENCED or run.control.fence_reason:
        return EXIT_FENCED
    if shipper.failure:
        note_failure(run, shipper.failure)
        return EXIT_FAILED
    if not delivered:
        log.warning("events_not_delivered", acked_seq=shipper.acked_seq, remedy="the spool keeps them")
    return code


@contextlib.contextmanager
def _heartbeat(launch: Launch, control: Control) -> Iterator[Heartbeat | None]:
    if launch.ingest_url is None:
        yield None
        return
    heartbeat = Heartbeat(control, url=launch.endpoint("heartbeat"), token=launch.token, epoch=launch.epoch)
    with contextlib.closing(heartbeat):
        yield heartbeat


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.run", description="Run one run of the engine.")
    parser.add_argument("run_dir", nargs="?", type=Path, help="a run folder with config.json and launch.json")
    parser.add_argument("--recipe", help="create a run folder from a recipe and run it")
    parser.add_argument(
        "--secrets-on-stdin",
        action="store_true",
        help="read the keys of endpoints and the secrets to redact in events and logs from standard input",
    )
    parser.add_argument(
        "--secrets-from-server",
        action="store_true",
        help="ask the web server for the keys of endpoints, with the token of the run folder",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one setting of the recipe"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="try the recipe: one iteration of two tasks with a tiny model of its architecture, on the CPU",
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=Path(os.environ.get("TRAINYARD_HOME", ".trainyard")),
        help="the data folder",
    )
    options = parser.parse_args(arguments)
    if (options.run_dir is None) == (options.recipe is None):
        parser.error("give either a run folder or --recipe")
    if options.set and not options.recipe:
        parser.error("--set needs --recipe: a run folder's configuration is fixed")
    if options.dry_run and not options.recipe:
        parser.error("--dry-run needs --recipe")
    return options


if __name__ == "__main__":
    limit_memory()
    sys.exit(main())
