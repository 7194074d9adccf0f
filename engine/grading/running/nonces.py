"""Secrets of one run of a script: its markers, its folder, the key of its record."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonces:
    """Secrets known only to this grading."""

    start: str
    end: str
    folder: str
    """Folder of the recorder and reports inside the sandbox."""
    key: str = ""
    """Key of the record; empty if the script is not recorded."""
    token: str = ""
    """Text that the script writes to ``begin`` when its tests begin."""

    @property
    def junit(self) -> str:
        """Return the path of the JUnit report."""
        return f"{self.folder}/junit.xml"

    @classmethod
    def fresh(cls) -> Nonces:
        """Return new nonces of a script that is not recorded."""
        return cls(
            start=f"trainyard-{secrets.token_hex(16)}",
            end=f"trainyard-{secrets.token_hex(16)}",
            folder=f"/tmp/trainyard-{secrets.token_hex(8)}",  # noqa: S108  inside the sandbox
        )

    def recording(self) -> Nonces:
        """Return the nonces of a script that runs pytest or ``unittest``, which is recorded."""
        return replace(self, key=secrets.token_hex(24), token=secrets.token_hex(24))
