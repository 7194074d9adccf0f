"""Repositories with their history: bare clones under ``home/repositories``, read in a sandbox."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from engine.config.access.source_spec import PackageSource, RepositorySource, parse_source
from engine.datasets.commits import history_program
from engine.datasets.commits.history import Commit, read_commits
from engine.datasets.commits.languages.base import Language
from engine.datasets.commits.languages.registry import Name, open_language
from engine.datasets.commits.licences import UNKNOWN, find_licence
from engine.datasets.sources.downloads import fetch_history, newest_commit, unpack
from engine.errors import DatasetError, HostileInputError
from engine.sandbox.local.contained import ContainedLimits, check_tree, run_contained

_HISTORY_LIMITS = ContainedLimits(seconds=600.0, file_mb=512)
_VERSION = 1
"""Raise it when ``history_program`` writes something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A bare clone with the whole history of its default branch."""

    spec: str
    """Folder or address, as configured."""
    name: str
    """Short name for instance ids, e.g. ``boltons``."""
    folder: Path
    head: str
    """Newest commit."""
    licence: str = UNKNOWN
    """SPDX expression, else a declaration as it is."""


def fetch_repository(spec: str, home: Path) -> Repository:
    """Fetch a repository, the first time whole, then its new commits; no code of it runs.

    Args:
        spec: ``https://HOST/PATH``, or the path of a working copy or bare repository.
        home: the data folder.

    Raises:
        PreflightError: it cannot be fetched.
        DatasetError: it has no history, or is no repository.
    """
    parsed = parse_source(spec)
    if isinstance(parsed, PackageSource):
        raise DatasetError(
            f"'{spec}' is a package, which has no history: name a repository, https://HOST/PATH"
        )
    is_remote = isinstance(parsed, RepositorySource)
    last = spec.rstrip("/").rsplit("/", 1)[-1] if is_remote else Path(spec).expanduser().resolve().name
    name = re.sub(r"[^A-Za-z0-9._-]", "-", last.removesuffix(".git")).strip(".-")[:60] or "repository"
    address = spec if is_remote else _git_folder(spec)
    cache = home / "repositories"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{name}-{hashlib.sha256(spec.encode()).hexdigest()[:12]}.git"
    with FileLock(folder.with_suffix(".lock")):
        fetch_history(address, folder)
    head = newest_commit(folder)
    if not head:
        raise DatasetError(f"'{spec}' has no commits")
    return Repository(spec=spec, name=name, folder=folder, head=head)


def read_head(repository: Repository, name: Name, home: Path) -> tuple[Repository, Language]:
    """Return a repository with the licence of its newest commit, and its language.

    Args:
        repository: the repository.
        name: its language; ``auto`` takes the one that the files of the commit declare.
        home: the data folder.

    Raises:
        DatasetError: the files cannot be written and the language is not named; else the licence is unknown.
        PreflightError: programs of the language are missing on this machine.
    """
    with tempfile.TemporaryDirectory(prefix=".head-", dir=home) as folder:
        (out := Path(folder, "out")).mkdir()
        try:
            tree = write_tree(repository, repository.head, out, home)
        except DatasetError:
            if name == "auto":
                raise
            return repository, open_language(name, None, home)
        return replace(repository, licence=find_licence(tree)), open_language(name, tree, home)


def _git_folder(path: str) -> str:
    """Return the git directory of a folder. Raises DatasetError if it is no repository."""
    folder = Path(path).expanduser().resolve()
    for candidate in (folder / ".git", folder):
        if (candidate / "HEAD").is_file() and (candidate / "objects").is_dir():
            if (candidate / "shallow").exists():
                raise DatasetError(f"'{path}' is a shallow clone, whose history is cut: fetch the rest of it")
            elsewhere = ("commondir", "objects/info/alternates", "objects/info/http-alternates")
            if any((candidate / name).exists() for name in elsewhere) or _has_links(candidate):
                raise DatasetError(f"'{path}' has parts of its repository elsewhere: name a whole clone")
            return str(candidate)
    raise DatasetError(f"'{path}' is not a git repository on this machine")


def _has_links(folder: Path) -> bool:
    """Return whether a folder is a symbolic link or contains one."""
    return folder.is_symlink() or any(
        Path(parent, name).is_symlink()
        for parent, folders, names in os.walk(folder)
        for name in (*folders, *names)
    )


def list_commits(repository: Repository, language: Language, count: int, home: Path) -> Iterator[Commit]:
    """Iterate over the newest commits, newest first; what was read once is kept beside the clone.

    Raises DatasetError: the history is damaged, hostile or too large.
    """
    kept = repository.folder.with_name(
        f"{repository.folder.stem}-{repository.head[:12]}-{count}-{language.name}-v{_VERSION}.jsonl"
    )
    with FileLock(repository.folder.with_suffix(".lock")):
        if not kept.exists():
            _write_history(repository, language, count, kept, home)
        return read_commits(kept.open(encoding="utf-8"), kept)


def _write_history(repository: Repository, language: Language, count: int, kept: Path, home: Path) -> None:
    staging = Path(tempfile.mkdtemp(prefix=".history-", dir=kept.parent))
    out = staging / "out"
    out.mkdir()
    try:
        inside = "/in/repository.git"
        run_contained(
            Path(history_program.__file__),
            [inside, str(count), *language.suffixes],
            home=home,
            reads={inside: repository.folder},
            writes=out,
            limits=_HISTORY_LIMITS,
        )
        check_tree(out, max_entries=1, max_bytes=2 * history_program.MAX_BYTES)
        for old in kept.parent.glob(f"{glob.escape(repository.folder.stem)}-*.jsonl"):
            old.unlink(missing_ok=True)
        (out / "commits.jsonl").rename(kept)
    except HostileInputError as error:
        raise DatasetError(f"the history of '{repository.spec}' is not usable: {error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_tree(repository: Repository, commit: str, target: Path, home: Path) -> Path:
    """Write the regular files of a commit below an empty folder and return the folder that has them.

    Raises DatasetError: the commit has too many or too large files.
    """
    what = f"commit {commit[:12]} of {repository.name}"
    return unpack("repository", repository.folder, target, home=home, what=what, revision=commit)
