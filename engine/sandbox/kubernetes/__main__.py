"""Command line of a cluster: ``python -m engine.sandbox.kubernetes preflight``, ``preload IMAGE…``,
``seccomp``.

Pipe the output of ``preload`` to ``kubectl apply -f -``. ``--set KEY=VALUE`` changes a setting of
``sandbox.kubernetes``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from engine.config.base import parse_settings
from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import TrainyardError
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.manifests.preload import daemon_set
from engine.sandbox.kubernetes.preflight.checks import check
from engine.sandbox.seccomp.oci import runtime_profile


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.sandbox.kubernetes", description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    commands = parser.add_subparsers(dest="command", required=True)
    preload = commands.add_parser("preload", help="print a DaemonSet that makes every node pull the images")
    preload.add_argument("images", nargs="+", metavar="IMAGE")
    commands.add_parser("seccomp", help="print the seccomp profile that nodes keep for Localhost/PATH")
    commands.add_parser("preflight", help="can this cluster run sandboxes? exit status 1 if not")
    return parser


async def _preflight(config: KubernetesConfig) -> int:
    backend = KubernetesBackend(SandboxConfig(backend="kubernetes", kubernetes=config))
    try:
        findings = await check(backend)
    finally:
        await backend.close()
    print("\n".join(map(str, findings)) or "This cluster can run sandboxes.")
    return int(any(finding.severity == "error" for finding in findings))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        config = KubernetesConfig.model_validate(parse_settings(options.settings))
        if options.command == "preflight":
            return asyncio.run(_preflight(config))
        printed = runtime_profile() if options.command == "seccomp" else daemon_set(config, options.images)
        print(json.dumps(printed, indent=2))
    except (TrainyardError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
