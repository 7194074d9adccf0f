"""Command line of local sandboxes: ``python -m engine.sandbox preflight``, ``reap``, ``exec IMAGE COMMAND``.

For people who look after a machine. A new command gets a parser and a branch in ``_run``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from engine.errors import SandboxError
from engine.sandbox.base import SandboxSpec
from engine.sandbox.images import load_image
from engine.sandbox.local import LocalBackend


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.sandbox", description=__doc__)
    default = os.environ.get("TRAINYARD_HOME", ".trainyard")
    parser.add_argument(
        "--home", type=Path, default=Path(default), help="the data folder (default: %(default)s)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("preflight", help="can this machine run sandboxes? exit status 1 if not")
    reap = commands.add_parser("reap", help="remove what dead owners left behind")
    reap.add_argument("--run", help="only sandboxes of this run")
    execute = commands.add_parser("exec", help="run one command in a fresh sandbox and print its output")
    execute.add_argument("image", help="name of a built image")
    execute.add_argument("argv", nargs="+", help="the command and its arguments")
    execute.add_argument("--timeout", type=float, default=60.0, help="seconds (default: %(default)s)")
    return parser


async def _run(options: argparse.Namespace) -> int:
    backend = LocalBackend(options.home)
    if options.command == "preflight":
        findings = await backend.preflight()
        print("\n".join(findings) or "This machine can run sandboxes.")
        return int(any(not line.startswith("Weaker:") for line in findings))
    if options.command == "reap":
        print(f"{await backend.reap(run_id=options.run)} removed")
        return 0
    spec = SandboxSpec(
        image=options.image, workdir=load_image(backend.home, options.image).workdir, name="command line"
    )
    async with backend.open(spec) as sandbox:
        result = await sandbox.exec(options.argv, timeout_s=options.timeout)
    sys.stdout.buffer.write(result.stdout)
    sys.stderr.buffer.write(result.stderr)
    return 124 if result.exit_code is None else result.exit_code


def main() -> int:
    """Run the command line; returns the exit status."""
    try:
        return asyncio.run(_run(_parser().parse_args()))
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
