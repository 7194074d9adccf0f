"""Sources of curation: a package's source distribution, a git repository or a folder.

To add a kind: a class, a branch in ``parse_source``, a download in ``engine.datasets.sources.fetch``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_PACKAGE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_REPOSITORY_PATH = re.compile(r"(?:/[A-Za-z0-9_~][A-Za-z0-9._~-]*)+/?")
_EXPECTED = "expected pip:NAME==VERSION, https://HOST/PATH or a folder"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """The source distribution of one package version from pip's index."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class RepositorySource:
    """A git repository read over https."""

    url: str

    @property
    def host(self) -> str:
        """Return host and, where the address has one, port: ``git.example.org:8443``."""
        return urlsplit(self.url).netloc.lower()


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A local folder."""

    path: str


SourceSpec = PackageSource | RepositorySource | FolderSource


def parse_source(text: str) -> SourceSpec:
    """Parse one entry of ``curation.sources``.

    Raises:
        ValueError: the entry is of no known kind, or has parts that its kind does not allow.
    """
    if text.startswith("pip:"):
        package = _PACKAGE.fullmatch(text.removeprefix("pip:"))
        if package is None:
            raise ValueError(
                f"'{text}' is no exact version of a package: {_EXPECTED}; options, ranges and addresses are "
                "refused"
            )
        return PackageSource(package[1], package[2])
    if text.startswith("https://"):
        return _repository(text)
    if (
        not text.strip()
        or text.startswith("-")
        or "\0" in text
        or re.match(r"[A-Za-z][\w+.-]*:|\S+@\S+:", text)
    ):
        raise ValueError(f"'{text}' is no source: {_EXPECTED}")
    return FolderSource(text)


def _repository(text: str) -> RepositorySource:
    refused = f"'{text}' is no address of a repository: {_EXPECTED}, without user, query or fragment"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(refused) from None
    plain = re.fullmatch(r"[A-Za-z0-9.-]+", parts.hostname or "") and _REPOSITORY_PATH.fullmatch(parts.path)
    expected = f"{parts.hostname}:{port}" if port is not None else parts.hostname
    if not plain or parts.netloc.lower() != expected or parts.query or parts.fragment:
        raise ValueError(refused)
    return RepositorySource(text)
