"""Command line of the conformance suite on the local backend; needs no test library.

Arguments select checks by parts of their names. Other backends run the suite in their own tests.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import traceback
from pathlib import Path

from engine.sandbox.conformance import CHECKS, Subject, reference_tree
from engine.sandbox.conformance.subject import SECRET
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image


async def _run(home: Path, parts: list[str]) -> int:
    backend = LocalBackend(home)
    subject = Subject(backend=backend, image="reference", secret_file=home / "secret")
    failed = 0
    for check in CHECKS:
        name = check.__name__
        if parts and not any(part in name for part in parts):
            continue
        try:
            await check(subject)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"passed {name}", flush=True)
    print(f"{failed} failed; overlay {not backend.copies}, control groups {backend.groups is not None}")
    return int(failed > 0)


def main() -> int:
    """Run the selected checks; return 1 when one failed."""
    os.environ["HOST_SECRET"] = SECRET
    with tempfile.TemporaryDirectory(prefix="trainyard-conformance-") as folder:
        home = Path(folder)
        (home / "tree").mkdir()
        reference_tree(home / "tree")
        build_image(home, "reference", home / "tree")
        (home / "secret").write_text(SECRET)
        return asyncio.run(_run(home, sys.argv[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
