"""Downloads of untrusted packages and repositories: fetched here, unpacked in a sandbox, never run or built.

pip and git are run such that a remote cannot make them start a program. ``unpack`` passes their downloads to
``engine.datasets.sources.unpacking`` in a separate sandbox.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from engine.datasets.sources import unpacking
from engine.errors import DatasetError, HostileInputError, PreflightError
from engine.sandbox.local.contained import check_tree, run_contained

_NETWORK_S = 600.0
_REPOSITORY_BYTES = 1 << 30
_BRANCH = "trainyard"
"""Branch of fetched histories."""
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


def clone(url: str, target: Path) -> None:
    """Fetch the newest commit of a repository over https, as a bare repository without hooks.

    Raises PreflightError: git is missing, or the repository cannot be fetched. See ``fetch_history``.
    """
    command = ["clone", "-q", "--bare", "--depth=1", "--single-branch", "--no-tags", "--template="]
    _fetch([*command, "--", url, str(target)], url, home=target.parent)


def fetch_history(address: str, repository: Path) -> None:
    """Fetch all commits of a repository's default branch into a bare repository without hooks.

    Redirects are refused, because only the given host was allowed. Other transports, submodules, credentials,
    and user and system configuration are disabled.

    Args:
        address: ``https://HOST/PATH``, or the git directory of a repository on this machine.
        repository: a new folder, or the one of an earlier call, which gets the new commits.
            Callers take turns.

    Raises:
        PreflightError: git is missing, or the repository cannot be fetched.
    """
    url = address if address.startswith("https://") else f"file://{quote(address)}"
    home = repository.parent
    for lock in (*repository.glob("*.lock"), *repository.glob("refs/heads/*.lock")):
        lock.unlink()  # of a git that was killed
    command = ["init", "-q", "--bare", "--template=", f"--initial-branch={_BRANCH}", str(repository)]
    _fetch(command, address, home=home)
    command = [f"--git-dir={repository}", "fetch", "-q", "--no-tags", "--no-write-fetch-head", "--force"]
    _fetch([*command, "--", url, f"HEAD:refs/heads/{_BRANCH}"], address, home=home)


def _fetch(command: Sequence[str], address: str, *, home: Path) -> None:
    protocol = "https" if address.startswith("https://") else "file"
    try:
        _git(command, (*_GIT_OPTIONS, f"protocol.{protocol}.allow=always"), home=home, protocol=protocol)
    except subprocess.TimeoutExpired:
        raise PreflightError(f"fetching '{address}' took more than {_NETWORK_S:g} s") from None
    except subprocess.CalledProcessError as error:
        if error.returncode == 127:
            raise PreflightError("git is not installed; give the source as a folder instead") from None
        if "couldn't find remote ref HEAD" in error.stderr:
            raise PreflightError(f"'{address}' has no commits") from None
        most = _REPOSITORY_BYTES >> 20
        raise PreflightError(
            f"cannot fetch '{address}' (at most {most} MiB): {error.stderr.strip()[-500:]}"
        ) from None


def newest_commit(repository: Path) -> str:
    """Return the commit of HEAD of a clone; empty if it has none."""
    try:
        command = [f"--git-dir={repository}", "rev-parse", "--verify", "-q", "HEAD^{commit}"]
        return _git(command, _GIT_OPTIONS, home=repository.parent, protocol="none").strip()
    except subprocess.CalledProcessError:
        return ""


def _git(arguments: Sequence[str], options: Sequence[str], *, home: Path, protocol: str) -> str:
    # The server side of a local fetch reads neither options nor variables.
    configuration = home / ".gitconfig"
    configuration.write_text("[safe]\n\tdirectory = *\n")
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON} | {
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(configuration),
        "GIT_ALLOW_PROTOCOL": protocol,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
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
        errors="replace",
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
