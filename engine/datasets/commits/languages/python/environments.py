"""Environments of commits: packages as of the commit's date, as wheels, mounted in sandboxes.

Nothing is built: ``uv`` resolves from the metadata of wheels with ``--exclude-newer``, pip downloads the
wheels, and a sandbox unpacks them. A project's own metadata (for ``importlib.metadata``) is written from its
files. Commits with the same packages share one folder.
"""

from __future__ import annotations

import datetime
import functools
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uv
from packaging.utils import canonicalize_name

from engine.datasets.commits.languages.python.project_files import ProjectFiles
from engine.datasets.curation.toolchain import PYTEST, ensure_toolchain
from engine.errors import DatasetError, PreflightError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_RESOLVE_S = 120.0
_UNSATISFIABLE = ("no solution found", "couldn't parse requirement", "failed to parse")
"""Texts in errors of ``uv`` whose cause is the requirements, not the index or this machine; lower case."""
PYTEST_CLOSURE = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""Packages that the test tools need in their own versions, whatever the date."""
_MAX_ENTRY_POINTS = 20_000
"""Part of a file of entry points that is read, characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Installed packages for the tests of a commit."""

    folder: Path
    """Toolchain with them, mounted at ``engine.testing.toolchain.MOUNT``."""
    pins: tuple[str, ...]
    plugins: tuple[str, ...]
    """Plugins of pytest among them, as arguments of ``-p``."""


@functools.lru_cache(maxsize=4096)
def resolve(
    requirements: tuple[str, ...], *, before: datetime.datetime | None, own: str = ""
) -> tuple[str, ...]:
    """Return exact versions, as they were available before a time; None: of today.

    Args:
        requirements: of packages of the index.
        before: the time.
        own: name of the project, which is left out where others require it.

    Raises:
        DatasetError: there are no wheels that fit, with the reason of ``uv``.
        PreflightError: the index cannot be reached.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requirements.in").write_text("\n".join([PYTEST, *requirements]) + "\n")
        command = [
            uv.find_uv_bin(),
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--no-config",
            "--only-binary",
            ":all:",
        ]
        command += ["--python-version", PYTHON, "--python", sys.executable]
        if before is not None:
            command += ["--exclude-newer", before.strftime("%Y-%m-%dT%H:%M:%SZ")]
            for package in PYTEST_CLOSURE:
                command += ["--exclude-newer-package", f"{package}=2100-01-01T00:00:00Z"]
        try:
            done = subprocess.run(
                [*command, "requirements.in"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_RESOLVE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reason = f"uv found no versions within {_RESOLVE_S:g} s: is the index reachable?"
            raise PreflightError(reason) from None
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        if any(text in reason.lower() for text in _UNSATISFIABLE):
            raise DatasetError(f"no versions fit: {reason[-400:]}")
        raise PreflightError(f"uv ended with {done.returncode}: {reason[-400:]}")
    pins = (line for line in done.stdout.splitlines() if line and not line.startswith(("#", " ")))
    return tuple(pin for pin in pins if canonicalize_name(pin.partition("==")[0]) != canonicalize_name(own))


def ensure_packages(home: Path, pins: Sequence[str], project: ProjectFiles) -> Packages:
    """Return the folder with the pinned packages and the project's metadata; made on first use.

    Raises:
        PreflightError: pip could not download a wheel.
        DatasetError: a wheel is damaged or hostile.
    """
    folder = ensure_toolchain(home, pins, is_complete=True, files=_metadata(project))
    return Packages(folder=folder, pins=tuple(pins), plugins=_plugins(folder))


def _plugins(folder: Path) -> tuple[str, ...]:
    modules = []
    for path in sorted(folder.glob("*.dist-info/entry_points.txt")):
        section = ""
        for line in path.read_text(errors="replace")[:_MAX_ENTRY_POINTS].splitlines():
            section = line.strip() if line.startswith("[") else section
            module = line.partition("=")[2].partition(":")[0].strip()
            if section == "[pytest11]" and re.fullmatch(r"[A-Za-z_][\w.]*", module):
                modules.append(module)
    return tuple(dict.fromkeys(modules))


def _metadata(project: ProjectFiles) -> dict[str, str]:
    """Return path → text of the project's installed metadata."""
    name = re.sub(r"[^A-Za-z0-9.]+", "_", project.name)
    if not name.strip("._"):
        return {}
    version = project.version or "0.1.dev0"
    folder = f"{name}-{version}.dist-info"
    files = {f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    if project.entry_points:
        files[f"{folder}/entry_points.txt"] = "\n".join(
            f"[{group}]\n" + "".join(f"{point} = {target}\n" for point, target in points.items())
            for group, points in project.entry_points.items()
        )
    return files
