"""Command line for sandboxes: ``python -m engine.sandbox preflight``, ``reap``, ``exec IMAGE COMMAND``.

For operators of a machine or a cluster. A new command needs a parser and a branch in ``_run``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from engine.config.sandbox import SandboxConfig
from engine.errors import PreflightError, SandboxError
from engine.sandbox.backends import make_backend
from engine.sandbox.base import SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import load_image
from engine.sandbox.preflight import preflight
from engine.sandbox.reaper import reap_all

BACKENDS: tuple[str, ...] = get_args(SandboxConfig.model_fields["backend"].annotation)
_CONFIGS = TypeAdapter(list[SandboxConfig])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.sandbox", description=__doc__)
    default = os.environ.get("TRAINYARD_HOME", ".trainyard")
    parser.add_argument(
        "--home", type=Path, default=Path(default), help="the data folder (default: %(default)s)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("preflight", help="check this machine; exit status 1 if no sandbox can run")
    checks.add_argument("--backend", choices=BACKENDS, default="local")
    checks.add_argument(
        "--json", action="store_true", help="print severity and message of each finding as JSON"
    )
    reap = commands.add_parser("reap", help="remove sandboxes of dead owners")
    reap.add_argument("--run", help="only sandboxes of this run")
    reap.add_argument(
        "--backend",
        choices=[*BACKENDS, "all"],
        default="local",
        help="backend to clean; `all` skips unreachable ones (default: %(default)s)",
    )
    reap.add_argument(
        "--config",
        metavar="FILE",
        help="JSON list of sandbox settings with the backends' addresses; - for stdin",
    )
    reap.add_argument("--json", action="store_true", help="print the result of each backend as JSON")
    execute = commands.add_parser("exec", help="run one command in a fresh sandbox and print its output")
    execute.add_argument("image", help="name of a built image")
    execute.add_argument("argv", nargs="+", help="the command and its arguments")
    execute.add_argument("--timeout", type=float, default=60.0, help="seconds (default: %(default)s)")
    return parser


async def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "preflight":
            backend = make_backend(SandboxConfig(backend=options.backend), options.home)
            try:
                findings = await preflight(backend)
            finally:
                await backend.close()
            if options.json:
                print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
            else:
                print("\n".join(map(str, findings)) or "This machine can run sandboxes.")
            return int(any(finding.severity == "error" for finding in findings))
        case "reap":
            return await _reap(options)
        case _:
            return await _execute(options)


async def _reap(options: argparse.Namespace) -> int:
    results = await reap_all(_configs(options), options.home, run_id=options.run)
    if options.json:
        print(json.dumps([dataclasses.asdict(reaped) for reaped in results]))
    else:
        print(f"{sum(reaped.removed for reaped in results)} removed")
        for reaped in results:
            if reaped.error:
                print(f"{reaped.backend}: {reaped.error}", file=sys.stderr)
    failed = [reaped for reaped in results if reaped.error]
    return int(bool(failed) and (options.backend != "all" or len(failed) == len(results)))


def _configs(options: argparse.Namespace) -> list[SandboxConfig]:
    """Return the settings of the backends to clean. Raises PreflightError for an unreadable file."""
    wanted = BACKENDS if options.backend == "all" else (options.backend,)
    if options.config is None:
        return [SandboxConfig.model_validate({"backend": name}) for name in wanted]
    try:
        text = sys.stdin.read() if options.config == "-" else Path(options.config).read_text()
        configs = _CONFIGS.validate_json(text)
    except (OSError, ValidationError) as error:
        raise PreflightError(f"--config {options.config}: {error}") from error
    return [config for config in configs if config.backend in wanted]


async def _execute(options: argparse.Namespace) -> int:
    backend = LocalBackend(options.home)
    spec = SandboxSpec(
        image=options.image, workdir=load_image(backend.home, options.image).workdir, name="command line"
    )
    async with backend.open(spec) as sandbox:
        result = await sandbox.exec(options.argv, timeout_s=options.timeout)
    sys.stdout.buffer.write(result.stdout)
    sys.stderr.buffer.write(result.stderr)
    return 124 if result.exit_code is None else result.exit_code


def main() -> int:
    """Run the command line; return the exit status."""
    try:
        return asyncio.run(_run(_parser().parse_args()))
    except (SandboxError, PreflightError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
