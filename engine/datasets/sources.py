"""Source trees that tasks are made from: a folder, a git repository, or ``pip:NAME==VERSION``.

``fetch_source`` copies the tree into ``home/sources/`` (cached), without documentation and
repository data, and finds its packages, import roots, tests and runtime dependencies. To add a kind
of source: a branch in ``_obtain``.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from engine.datasets.toolchain import run_pip
from engine.errors import DatasetError, PreflightError

_LEFT_OUT = frozenset(
    {
        ".git", ".github", ".hg", ".tox", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache",
        ".ruff_cache", "doc", "docs", "build", "dist", "node_modules", ".eggs",
    }
)  # fmt: skip
_NOT_PACKAGES = frozenset({"tests", "test", "examples", "benchmarks", "scripts", "tools"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A cached source tree and what was found in it; paths are relative to ``tree``."""

    spec: str
    """As configured, e.g. ``pip:boltons==26.2.0``."""
    name: str
    """Short name for instance ids, e.g. ``boltons``."""
    revision: str
    """Version, commit or content hash."""
    tree: Path
    packages: tuple[str, ...]
    roots: tuple[str, ...]
    """Folders that go on ``sys.path``."""
    tests: tuple[str, ...]
    requirements: tuple[str, ...]
    """Unconditional runtime dependencies from its metadata."""


def fetch_source(spec: str, home: Path) -> Source:
    """Obtain and inspect a source; cached under ``home/sources/``.

    Raises:
        PreflightError: it cannot be fetched (no network, no such version, no git).
        DatasetError: there is no package or there are no tests in it.
    """
    cache = home / "sources"
    cache.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
    try:
        pinned = re.fullmatch(r"pip:([A-Za-z0-9._-]+)==([A-Za-z0-9.!+]+)", spec)
        if pinned:
            target, name, revision = cache / f"{pinned[1]}-{pinned[2]}", pinned[1], pinned[2]
        else:
            _obtain(spec, staging)
            revision = _tree_hash(staging / "tree")
            name = re.sub(r"\.git$", "", spec.rstrip("/")).rsplit("/", 1)[-1]
            target = cache / f"{name}-{revision}"
        if not target.exists():
            if pinned:
                _obtain(spec, staging)
            (staging / "tree").rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return _inspect(spec, name, revision, target)


def _obtain(spec: str, staging: Path) -> None:
    """Put the wanted files of ``spec`` in ``staging/tree``."""
    raw = staging / "raw"
    if spec.startswith("pip:"):
        download = staging / "download"
        run_pip(
            ["download", "--no-binary", ":all:", "--no-deps", "-d", str(download), spec.removeprefix("pip:")]
        )
        _unpack(next(iter(sorted(download.iterdir()))), raw)
        raw = next(path for path in sorted(raw.iterdir()) if path.is_dir())
    elif re.match(r"[a-z+]+://|git@", spec) or (Path(spec).expanduser() / ".git").exists():
        _clone(spec, raw)
    elif Path(spec).expanduser().is_dir():
        raw = Path(spec).expanduser()
    else:
        raise DatasetError(
            f"source '{spec}' is no folder, no repository and not of the form pip:NAME==VERSION"
        )

    def left_out(folder: str, names: list[str]) -> list[str]:
        inside = [name for name in names if name in _LEFT_OUT or name.endswith((".pyc", ".egg-info", ".so"))]
        return inside + [name for name in names if (Path(folder) / name).is_symlink()]

    shutil.copytree(raw, staging / "tree", ignore=left_out)


def _unpack(archive: Path, target: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise DatasetError(f"cannot unpack {archive.name}: {error}") from error


def _clone(spec: str, target: Path) -> None:
    command = ["git", "clone", "-q", "--depth", "1", "--", spec, str(target)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    except FileNotFoundError:
        raise PreflightError("git is not installed; give the source as a folder instead") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or "").strip() if isinstance(error.stderr, str) else ""
        raise PreflightError(f"cannot clone '{spec}': {said or error}") from error


def _tree_hash(tree: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _inspect(spec: str, name: str, revision: str, tree: Path) -> Source:
    base = tree / "src" if (tree / "src").is_dir() else tree
    packages = [
        path.parent.relative_to(tree).as_posix()
        for path in sorted(base.glob("*/__init__.py"))
        if path.parent.name not in _NOT_PACKAGES
    ]
    if not packages:
        raise DatasetError(f"source '{spec}' has no Python package at its top or under src/")
    tests = [folder for folder in ("tests", "test") if (tree / folder).is_dir()]
    tests += [
        path.relative_to(tree).as_posix()
        for package in packages
        for path in (tree / package / "tests", tree / package / "test")
        if path.is_dir()
    ]
    tests += [path.name for path in sorted(tree.glob("test_*.py"))]
    if not tests:
        raise DatasetError(f"source '{spec}' carries no tests (looked for tests/, test/ and test_*.py)")
    roots = tuple(dict.fromkeys((base.relative_to(tree).as_posix(), ".")))
    return Source(
        spec=spec,
        name=name,
        revision=revision,
        tree=tree,
        packages=tuple(packages),
        roots=roots,
        tests=tuple(tests),
        requirements=_requirements(tree),
    )


def _requirements(tree: Path) -> tuple[str, ...]:
    """Dependencies that hold without extras or conditions."""
    found: list[str] = []
    metadata, project = tree / "PKG-INFO", tree / "pyproject.toml"
    if metadata.exists():
        found = HeaderParser().parsestr(metadata.read_text()).get_all("Requires-Dist") or []
    elif project.exists():
        try:
            found = tomllib.loads(project.read_text()).get("project", {}).get("dependencies", [])
        except tomllib.TOMLDecodeError as error:
            raise DatasetError(f"{project.name} of the source is malformed: {error}") from error
    return tuple(sorted(text for text in found if ";" not in text))
