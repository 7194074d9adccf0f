"""Command line for stores: ``python -m engine.storage check``, ``restore``, ``spool``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import PreflightError
from engine.redaction import redact
from engine.storage.folder import restore, restore_spool
from engine.storage.manifest import newest_manifest
from engine.storage.store import Store, StoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m engine.storage", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="write, read and delete an object")
    check.add_argument("url")
    fetch = commands.add_parser("restore", help="restore a run folder to the state of the store")
    fetch.add_argument("url", help="storage.url and the run's number: s3://BUCKET/PREFIX/7")
    fetch.add_argument("run_dir", type=Path)
    events = commands.add_parser("spool", help="write the events of a run to a file")
    events.add_argument("url", help="storage.url and the run's number: s3://BUCKET/PREFIX/7")
    events.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    try:
        store = Store(options.url)
        if options.command == "check":
            store.check()
            return 0
        manifest = newest_manifest(store)
        if manifest is None:
            raise StoreError(f"the store {store.url} holds no run")
        if options.command == "spool":
            restore_spool(store, manifest, options.file)
            return 0
        options.run_dir.mkdir(parents=True, exist_ok=True)
        restore(store, manifest, options.run_dir)
    except (StoreError, PreflightError) as error:
        print(redact(str(error)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
