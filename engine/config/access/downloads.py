"""Limits of downloads from the Hugging Face Hub.

A run's process stores them in its environment, which its child processes inherit. Without them, as in a
shell, downloads are unlimited.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pydantic import BaseModel

TOKEN_MARK = "+token"
"""Suffix of entries in the administrator's lists whose downloads use the workers' own token."""
_VARIABLE = "TRAINYARD_HUB_LIMITS"


class HubLimits(BaseModel):
    """Limits of downloads in this process."""

    max_gb: float | None = None
    """Maximum size of a download, GB; None sets no limit."""
    token_models: tuple[str, ...] = ("*",)
    """Patterns of the models whose downloads use the token of this machine."""
    token_datasets: tuple[str, ...] = ("*",)
    """Patterns of the datasets whose downloads use that token."""

    @classmethod
    def current(cls) -> HubLimits:
        """Return the limits in the environment of this process."""
        return cls.model_validate_json(os.environ.get(_VARIABLE, "{}"))

    def impose(self) -> None:
        """Limit the downloads of this process and of those it starts."""
        os.environ[_VARIABLE] = self.model_dump_json()

    def check_size(self, name: str, num_bytes: int) -> None:
        """Raise ValueError where a download would be too large."""
        if self.max_gb is not None and num_bytes > self.max_gb * 1e9:
            raise ValueError(
                f"'{name}' needs a download of {num_bytes / 1e9:,.1f} GB, more than downloads.max_gb "
                f"({self.max_gb:g}): raise it, or choose a smaller one"
            )


def hub_token(name: str, patterns: Sequence[str]) -> bool | None:
    """Return ``token`` for ``huggingface_hub``: None uses this machine's token, if any; False uses none."""
    return None if is_listed(name, patterns) else False


def is_listed(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a Hub name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def names_of(entries: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of an administrator's list, without the token marks."""
    return tuple(entry.removesuffix(TOKEN_MARK) for entry in entries)


def with_token(entries: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of an administrator's list whose downloads use the workers' token."""
    return names_of([entry for entry in entries if entry.endswith(TOKEN_MARK)])
