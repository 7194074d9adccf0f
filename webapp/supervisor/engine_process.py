"""Execution of the engine's command lines in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECRETS = frozenset(
    {
        "DATABASE_URL",
        "EMAIL_URL",
        "REDIS_URL",
        "TRAINYARD_SECRET_KEY",
        "TRAINYARD_SEALING_KEYS",
        "TRAINYARD_ENDPOINT_KEY",
        "TRAINYARD_VLLM_KEY",
        "RAY_AUTH_TOKEN",
    }
)
"""Environment variables withheld from processes of the engine. A run authenticates with its token only and
receives the keys of its endpoints by other means."""


class EngineFailedError(Exception):
    """A command line of the engine failed; the message is its output."""


def engine_json(arguments: Sequence[str], *, project: Path, stdin: str = "", timeout_s: float = 60.0) -> Any:
    """Run ``python -m ARGUMENTS`` without ``SECRETS`` and return the JSON that it prints.

    Args:
        arguments: module of the engine, and its arguments.
        project: folder of the engine.
        stdin: input of the process.
        timeout_s: time after which it is killed, seconds.

    Raises:
        EngineFailedError: it could not be started, failed or printed no JSON.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=project,
            env={key: value for key, value in os.environ.items() if key not in SECRETS},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineFailedError(str(error)) from error
    except ValueError:
        raise EngineFailedError((done.stderr or done.stdout).strip()[-500:] or "no output") from None
