"""Fetching of source trees for tasks: a folder, a git repository, or ``pip:NAME==VERSION``.

``fetch_source`` copies the tree into ``home/sources/`` (cached), without documentation and
repository data, and finds its packages, import roots, tests and runtime dependencies. To add a kind
of source, extend ``engine.config.access.source_spec`` and add a branch to ``_obtain``.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import tomllib
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from engine.config.access.source_spec import (
    FolderSource,
    PackageSource,
    RepositorySource,
    SourceSpec,
    parse_source,
)
from engine.datasets.sources.downloads import clone, unpack
from engine.errors import DatasetError
from engine.pip_files import run_pip_files
from engine.reading import read_bounded

_PIECE, _MAX_METADATA = 1 << 20, 1 << 20
_LEFT_OUT = frozenset(
    {
        ".git", ".github", ".hg", ".tox", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache",
        ".ruff_cache", "doc", "docs", "build", "dist", "node_modules", ".eggs",
    }
)  # fmt: skip
_NOT_PACKAGES = frozenset({"tests", "test", "examples", "benchmarks", "scripts", "tools"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A cached source tree and its inspected properties; paths are relative to ``tree``."""

    spec: str
    """Specification as configured, e.g. ``pip:boltons==26.2.0``."""
    name: str
    """Short name for instance ids, e.g. ``boltons``."""
    revision: str
    """Version, commit or content hash."""
    tree: Path
    packages: tuple[str, ...]
    roots: tuple[str, ...]
    """Folders to put on ``sys.path``."""
    tests: tuple[str, ...]
    requirements: tuple[str, ...]
    """Unconditional runtime dependencies from its metadata."""


def fetch_source(spec: str, home: Path) -> Source:
    """Fetch and inspect a source; cached under ``home/sources/``.

    No code of the source runs here; downloads are unpacked in a sandbox.

    Raises:
        PreflightError: the source cannot be fetched (no network, no such version, no git).
        DatasetError: it is of an unknown kind, damaged or hostile, or has no package or no tests.
    """
    try:
        parsed = parse_source(spec)
    except ValueError as error:
        raise DatasetError(str(error)) from None
    cache = home / "sources"
    cache.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
    try:
        if isinstance(parsed, PackageSource):
            name, revision = parsed.name, parsed.version
            target = cache / f"{name}-{revision}"
            if not target.exists():
                _obtain(parsed, staging, home)
        else:
            _obtain(parsed, staging, home)
            revision = _tree_hash(staging / "tree")
            name = re.sub(r"\.git$", "", spec.rstrip("/")).rsplit("/", 1)[-1]
            target = cache / f"{name}-{revision}"
        if not target.exists():
            (staging / "tree").rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return _inspect(spec, name, revision, target)


def _obtain(spec: SourceSpec, staging: Path, home: Path) -> None:
    """Put the selected files of a source into ``staging/tree``."""
    raw = staging / "raw"
    raw.mkdir()
    match spec:
        case FolderSource(path):
            folder = Path(path).expanduser()
            if not folder.is_dir():
                raise DatasetError(f"source '{path}' is not a folder on this machine")
        case PackageSource(name, version):
            download = staging / "download"
            download.mkdir()
            run_pip_files("sdist", name, version, str(download))
            archive = next(download.iterdir())
            folder = unpack("sdist", archive, raw, home=home, what=f"{name} {version}")
        case RepositorySource(url):
            clone(url, staging / "repository")
            folder = unpack("repository", staging / "repository", raw, home=home, what=url)

    def left_out(folder: str, names: list[str]) -> list[str]:
        inside = [name for name in names if name in _LEFT_OUT or name.endswith((".pyc", ".egg-info", ".so"))]
        return inside + [name for name in names if _is_special(Path(folder) / name)]

    shutil.copytree(folder, staging / "tree", ignore=left_out)


def _is_special(path: Path) -> bool:
    """Return whether a path is neither a folder nor a regular file."""
    return path.is_symlink() or not (path.is_dir() or path.is_file())


def _tree_hash(tree: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(tree)}\0".encode())
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
        digest.update(b"\0")
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
        raise DatasetError(f"source '{spec}' has no tests (looked for tests/, test/ and test_*.py)")
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
    """Return the dependencies without extras or conditions."""
    dependencies: list[str] = []
    metadata, project = tree / "PKG-INFO", tree / "pyproject.toml"
    try:
        if metadata.exists():
            text = read_bounded(metadata, _MAX_METADATA).decode(errors="replace")
            dependencies = HeaderParser().parsestr(text).get_all("Requires-Dist") or []
        elif project.exists():
            table = tomllib.loads(read_bounded(project, _MAX_METADATA).decode()).get("project", {})
            dependencies = table.get("dependencies", [])
    except (OSError, ValueError, RecursionError) as error:  # ValueError: of TOML, or not UTF-8
        name = metadata.name if metadata.exists() else project.name
        raise DatasetError(f"{name} of the source is malformed: {error}") from error
    return tuple(sorted(text for text in dependencies if ";" not in text and _is_named(text)))


def _is_named(text: str) -> bool:
    """Return whether a requirement names a package of the index. Raises DatasetError for anything else."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.url is not None:
        raise DatasetError(
            f"the source requires '{text[:200]}': expected a package of the index, NAME with versions"
        )
    return True
