"""Downloads of untrusted packages and repositories: fetched here, unpacked in a sandbox, never run or built.

pip and git are run such that a remote cannot make them start a program. ``unpack`` passes their downloads to
``engine.datasets.sources.unpacking`` in a separate sandbox.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from engine.datasets.sources import unpacking
from engine.errors import DatasetError, HostileInputError, PreflightError
from engine.sandbox.local.contained import check_tree, run_contained

_NETWORK_S = 600.0
_REPOSITORY_BYTES = 1 << 30
_GIT_OPTIONS = (
    "protocol.allow=never",
    "http.followRedirects=false",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "credential.helper=",
    "transfer.fsckObjects=true",
    # Harmless faults of old histories:
    *(
        f"fetch.fsck.{fault}=ignore"
        for fault in ("zeroPaddedFilemode", "badTimezone", "missingSpaceBeforeDate")
    ),
    "safe.directory=*",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
)
_PASSED_ON = frozenset(
    {"PATH", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "GIT_SSL_CAINFO", "SSL_CERT_FILE"}
)
"""Environment variables that git needs to reach the network; credentials are not among them."""


def run_pip_files(*arguments: str) -> None:
    """Run ``engine.datasets.sources.pip_files``. Raises PreflightError with the last line of its output."""
    command = [sys.executable, "-m", "engine.datasets.sources.pip_files", *arguments]
    environment = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    root = str(Path(__file__).resolve().parents[3])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_NETWORK_S, env=environment, cwd=root
        )
    except subprocess.TimeoutExpired:
        raise PreflightError(f"pip took more than {_NETWORK_S:g} s to download {arguments[1]}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.split("\n") if line.strip()] or ["no output"]
        raise PreflightError(f"pip download failed: {lines[-1][:500]} (is a package index reachable?)")


def clone(address: str, target: Path, *, whole: bool = False) -> None:
    """Fetch the default branch of a repository as a bare repository without hooks.

    Redirects are refused, because only the given host was allowed. Other transports, submodules, credentials,
    and user and system configuration are disabled.

    Args:
        address: ``https://HOST/PATH``, or the git directory of a repository on this machine.
        target: folder to create.
        whole: fetch all commits instead of the newest one.

    Raises:
        PreflightError: git is missing, or the repository cannot be fetched.
    """
    protocol = "https" if address.startswith("https://") else "file"
    url = address if protocol == "https" else f"file://{address}"
    depth = () if whole else ("--depth=1",)
    options = (*_GIT_OPTIONS, f"protocol.{protocol}.allow=always")
    command = ["clone", "-q", "--bare", *depth, "--single-branch", "--no-tags", "--template=", "--", url]
    try:
        _git([*command, str(target)], options, home=target.parent, protocol=protocol)
    except subprocess.TimeoutExpired:
        raise PreflightError(f"cloning '{address}' took more than {_NETWORK_S:g} s") from None
    except subprocess.CalledProcessError as error:
        if error.returncode == 127:
            raise PreflightError("git is not installed; give the source as a folder instead") from None
        raise PreflightError(f"cannot clone '{address}': {error.stderr.strip()[-500:]}") from None


def newest_commit(repository: Path) -> str:
    """Return the commit of HEAD of a clone; empty if it has none."""
    try:
        command = [f"--git-dir={repository}", "rev-parse", "--verify", "-q", "HEAD^{commit}"]
        return _git(command, _GIT_OPTIONS, home=repository, protocol="none").strip()
    except subprocess.CalledProcessError:
        return ""


def _git(arguments: Sequence[str], options: Sequence[str], *, home: Path, protocol: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON} | {
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": protocol,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
    }
    # In units of 512 bytes; limits the size of every file, including the repository's pack.
    limited = ["/bin/sh", "-c", f'ulimit -f {_REPOSITORY_BYTES // 512}; exec "$@"', "sh", "git"]
    done = subprocess.run(
        [*limited, *(part for option in options for part in ("-c", option)), *arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_NETWORK_S,
        env=environment,
    )
    return done.stdout


def unpack(
    kind: Literal["sdist", "wheels", "repository"],
    packed: Path,
    target: Path,
    *,
    home: Path,
    what: str,
    revision: str = "HEAD",
) -> Path:
    """Unpack a download in a sandbox and return the folder of its files.

    Args:
        kind: see ``engine.datasets.sources.unpacking``.
        packed: archive, folder of wheels, or bare repository.
        target: an empty folder owned by this process.
        home: the data folder.
        what: display name of the download.

    Raises:
        DatasetError: the download is damaged, exceeds the limits or contains anything but files.
        PreflightError: sandboxes are not available on this machine.
    """
    inside = f"/in/{packed.name}"
    try:
        run_contained(
            Path(unpacking.__file__),
            [kind, inside, revision],
            home=home,
            reads={inside: packed},
            writes=target,
        )
        check_tree(target, max_entries=2 * unpacking.MAX_FILES, max_bytes=2 * unpacking.MAX_BYTES)
        if not (target / "tree").is_dir():
            raise HostileInputError("it is empty")
    except HostileInputError as error:
        raise DatasetError(f"{what} is not usable: {error}") from None
    return target / "tree"
