"""Connection of this process to its Ray cluster."""

from __future__ import annotations

import os
import threading
from types import ModuleType

from engine.errors import PreflightError
from engine.processes.environment import take_variable
from engine.redaction import add_secrets

ADDRESS, TOKEN = "RAY_ADDRESS", "RAY_AUTH_TOKEN"
_lock = threading.Lock()
_token = ""


def take_token() -> None:
    """Move the cluster's token from the environment into this process's memory and its redactor."""
    global _token
    if token := take_variable(TOKEN):
        add_secrets([token])
        _token = token


def connect() -> ModuleType:
    """Connect to the cluster, unless this process is connected; return Ray's module.

    Call it outside of the main thread: there Ray would replace the handler of SIGTERM.

    Raises:
        PreflightError: Ray is not installed, this process belongs to no cluster, or that does not answer.
    """
    with _lock:
        try:
            import ray
        except ImportError as error:
            raise PreflightError(
                f"this environment has no Ray ({error}): install the cluster's version there, or set "
                "trainer.launcher to 'local'"
            ) from error
        if not ray.is_initialized():
            _connect(ray)
        return ray


def _connect(ray: ModuleType) -> None:
    address = os.environ.get(ADDRESS, "")
    if not address:
        raise PreflightError(
            f"this process is no job of a Ray cluster ({ADDRESS} is not set): set launcher.backend to 'ray', "
            "or trainer.launcher to 'local'"
        )
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if _token:
        os.environ[TOKEN] = _token
    try:
        ray.init(address=address, logging_level="error")
    except Exception as error:
        raise PreflightError(f"the Ray cluster at {address} does not take this process: {error}") from error
    finally:
        take_token()  # Ray keeps it


def own_address() -> str:
    """Return the IP address of this node, by which the others reach it."""
    address: str = connect().util.get_node_ip_address()
    return address


def has_gpus() -> bool:
    """Return whether any node of the cluster has GPUs."""
    return bool(connect().cluster_resources().get("GPU"))
