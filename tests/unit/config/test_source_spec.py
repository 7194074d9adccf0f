"""Accepted and refused values of ``curation.sources``."""

from __future__ import annotations

import pytest

from engine.config.access.source_spec import FolderSource, PackageSource, RepositorySource, parse_source
from engine.config.recipes import resolve
from engine.errors import ConfigError


def test_packages_repositories_and_folders_are_distinguished() -> None:
    assert parse_source("pip:toolz==1.0.0") == PackageSource("toolz", "1.0.0")
    repository = parse_source("https://git.example.org:8443/group/name.git")
    assert repository == RepositorySource("https://git.example.org:8443/group/name.git")
    assert isinstance(repository, RepositorySource)
    assert repository.host == "git.example.org:8443"
    assert parse_source("some/folder") == FolderSource("some/folder")


REFUSED = [
    "pip:-r/etc/passwd", "pip:--index-url=https://example.org", "pip:evil @ https://example.org/evil.tar.gz",
    "pip:evil@https://example.org/evil.tar.gz", "pip:evil==1.0 @ file:///tmp/evil",
    "pip:evil==1.0 --no-build-isolation", "pip:evil==1.0\n-r/etc/passwd", "pip:evil==1.*", "pip:evil>=1.0",
    "pip:evil", "pip:/etc", "pip:.", "pip:git+https://example.org/evil", "http://example.org/evil",
    "git://example.org/evil", "ssh://example.org/evil", "git@example.org:evil", "file:///etc",
    "ext::sh -c id",
    "https://user:password@example.org/evil", "https://example.org@evil.example.net/evil",
    "https://example.org/evil?upload-pack=id", "https://example.org/evil#main", "https://example.org",
    "https://example.org/../evil", "https:///evil", "https://example.org:port/evil", "-oProxyCommand=id",
    "--upload-pack=id", "", "a\0b",
]  # fmt: skip


def test_configuration_refuses_all_other_sources() -> None:
    for source in REFUSED:
        with pytest.raises(ConfigError, match="expected pip:NAME==VERSION, https://HOST/PATH or a folder"):
            resolve("quickstart-dataset", {"curation.sources": [source]})
