"""Program that downloads files from pip's configured index without running any of their code.

    python -m engine.pip_files sdist NAME VERSION FOLDER
    python -m engine.pip_files wheels FOLDER REQUIREMENT...
    python -m engine.pip_files pinned FOLDER NAME==VERSION...

pip builds every source distribution that it downloads, to read its metadata (pypa/pip#1884); no option
disables this. So pip's own finder and session are used, which honour its whole configuration: indexes,
folders, credentials, certificates, proxies. A separate process isolates pip's internals.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import PreflightError

MAX_BYTES = 256 << 20
_CHUNK = 1 << 20
_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

_NETWORK_S = 600.0


def run_pip_files(*arguments: str) -> None:
    """Run this program in a process of its own; see the module's docstring for its arguments.

    Raises:
        PreflightError: it fails; the message has the last line of its output.
    """
    command = [sys.executable, "-m", "engine.pip_files", *arguments]
    environment = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    root = str(Path(__file__).resolve().parents[1])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_NETWORK_S, env=environment, cwd=root
        )
    except subprocess.TimeoutExpired:
        raise PreflightError(f"pip took more than {_NETWORK_S:g} s to download {arguments[1]}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.split("\n") if line.strip()] or ["no output"]
        raise PreflightError(f"pip download failed: {lines[-1][:500]} (is a package index reachable?)")


def fetch_sdist(name: str, version: str, folder: Path) -> None:
    """Download the source distribution of one version into an existing folder."""
    command = _pip("_internal.commands").create_command("download")
    options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        specifier = _pip("_vendor.packaging.specifiers").SpecifierSet(f"=={version}")
        best = finder.find_best_candidate(name, specifier).best_candidate
        if best is None:
            sys.exit(f"the index has no source distribution of {name} {version}")
        _save(session, best.link, folder)


def _save(session: Any, link: Any, folder: Path) -> None:
    suffix = next((suffix for suffix in _SUFFIXES if link.filename.endswith(suffix)), None)
    if suffix is None:
        sys.exit(f"{link.filename} is no source distribution")
    response = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
    response.raise_for_status()
    digest = hashlib.new(link.hash_name) if link.hash_name else None
    size = 0
    with (folder / f"sdist{suffix}").open("wb") as file:
        for chunk in response.iter_content(_CHUNK):
            size += len(chunk)
            if size > MAX_BYTES:
                sys.exit(f"{link.filename} is larger than {MAX_BYTES >> 20} MiB")
            file.write(chunk)
            if digest is not None:
                digest.update(chunk)
    if digest is not None and digest.hexdigest() != link.hash:
        sys.exit(f"{link.filename} does not have the hash given by the index")


def fetch_wheels(folder: Path, requirements: Sequence[str], *, pinned: bool = False) -> None:
    """Download pure-Python wheels and their dependencies.

    Args:
        folder: an existing folder.
        requirements: of packages of the index.
        pinned: download the wheels of these exact versions only, compiled ones for this interpreter, too.
    """

    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        sys.exit("a dependency is a URL, not a package of the index")

    # Dependencies of a wheel may be URLs, which pip would build in spite of ``--only-binary``.
    _pip("_internal.operations.prepare").unpack_vcs_link = refuse
    _pip("_internal.distributions.sdist").SourceDistribution.prepare_distribution_metadata = refuse
    # "any" admits pure-Python wheels only, which work with every interpreter in a sandbox.
    kinds = ["--no-deps"] if pinned else ["--platform", "any"]
    pure = ["--only-binary", ":all:", *kinds, "-d", str(folder)]
    command = _pip("_internal.commands").create_command("download")
    sys.exit(command.main(["-q", *pure, "--", *requirements]))


def _pip(module: str) -> Any:
    return importlib.import_module(f"pip.{module}")


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "sdist":
        fetch_sdist(rest[0], rest[1], Path(rest[2]))
    else:
        fetch_wheels(Path(rest[0]), rest[1:], pinned=kind == "pinned")
