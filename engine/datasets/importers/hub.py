"""Downloads of datasets from the Hugging Face Hub, file by file into ``home/hub`` at one commit.

``huggingface_hub`` does the work: downloads go on where they were, complete files are not fetched again. A
branch or tag is turned into its commit first, which is what provenance records. ``HF_ENDPOINT`` and
``HF_TOKEN`` count as they do everywhere; ``HF_HUB_OFFLINE=1`` uses what is there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from engine.datasets.importers.files import SUFFIXES
from engine.datasets.importers.reading import Source, split_of
from engine.errors import DatasetError, PreflightError
from engine.files import atomic_write

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


def fetch(
    name: str,
    *,
    home: Path,
    revision: str = "",
    subset: str = "",
    split: str = "",
    whole: bool = False,
    report: Callable[[str], None],
) -> Source:
    """Download the data files of a dataset.

    Args:
        name: ``OWNER/NAME``.
        home: the data folder; files come below its ``hub/<name>/<commit>``.
        revision: branch, tag or commit; empty is the main branch.
        subset: the configuration, where a dataset has several.
        split: only the files of this split.
        whole: every file, for sets of folders.
        report: told which file is fetched.

    Raises:
        DatasetError: no such dataset, revision, subset or split; or it has no readable files.
        PreflightError: the hub cannot be reached, or the library is missing.
    """
    if not _NAME.fullmatch(name):
        raise DatasetError(f"'{name}' is no name of a dataset at the hub: write hf:OWNER/NAME")
    hub = _library()
    root = home / "hub" / name.replace("/", "--")
    with _explained(hub, name, revision):
        commit, files = _listing(hub, name, revision, root)
        chosen = list(files) if whole else choose_files(files, subset=subset, split=split, name=name)
        folder = root / commit
        for number, file in enumerate(chosen, start=1):
            if _is_offline() or (folder / file).is_file():
                continue
            report(f"fetching {file} ({number} of {len(chosen)})")
            hub.hf_hub_download(
                name, file, repo_type="dataset", revision=commit, local_dir=folder, endpoint=_endpoint()
            )
    return Source(path=folder, only=frozenset() if whole else frozenset(chosen), revision=commit)


@contextlib.contextmanager
def _explained(hub: Any, name: str, revision: str) -> Iterator[None]:
    """Context manager: re-raise the library's errors with their remedy."""
    errors = hub.errors
    try:
        yield
    except errors.GatedRepoError:
        raise DatasetError(f"'{name}' is gated: accept its terms at the hub and set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise DatasetError(f"'{name}' has no revision '{revision}'") from None
    except errors.RepositoryNotFoundError:
        raise DatasetError(f"the hub has no dataset '{name}' (a private one needs HF_TOKEN)") from None
    except errors.HfHubHTTPError as error:
        raise PreflightError(f"the Hugging Face hub answered: {str(error)[:300]}") from None
    except Exception as error:
        # The library has changed its HTTP client twice; each has its own errors.
        foreign = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests")
        if not foreign and not isinstance(error, errors.LocalEntryNotFoundError | ConnectionError):
            raise
        hub_url = _endpoint() or "https://huggingface.co"
        raise PreflightError(
            f"the Hugging Face hub at {hub_url} cannot be reached ({type(error).__name__}): import from a "
            "local file, set HF_ENDPOINT to a mirror, or HF_HUB_OFFLINE=1 to use what was downloaded before"
        ) from None


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise PreflightError(
            "the Hugging Face hub needs the package huggingface_hub: pip install -r requirements/engine.txt"
        ) from error
    return huggingface_hub


def _listing(hub: Any, name: str, revision: str, root: Path) -> tuple[str, list[str]]:
    """Return the commit and its files; offline, the files already downloaded."""
    reference = root / "refs" / (revision or "main").replace("/", "--")
    if not _is_offline():
        info = hub.HfApi(endpoint=_endpoint()).dataset_info(name, revision=revision or None)
        reference.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(reference, str(info.sha))
        names = [str(file.rfilename) for file in info.siblings or ()]
        return str(info.sha), [name for name in names if ".." not in PurePosixPath(name).parts]
    folder = root / reference.read_text() if reference.is_file() else root
    if folder == root:
        raise DatasetError(f"HF_HUB_OFFLINE is set and '{name}' has not been downloaded yet")
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return folder.name, [path.as_posix() for path in found if path.parts[0] != ".cache"]


def choose_files(files: Sequence[str], *, subset: str, split: str, name: str) -> list[str]:
    """Return the data files in a stable order: one kind (parquet before others), subset and split.

    Raises:
        DatasetError: none fits; says what there is.
    """
    data = [file for file in sorted(files) if file.endswith(SUFFIXES) and not file.startswith(".")]
    for suffix in SUFFIXES:
        kind = [file for file in data if file.endswith(suffix)]
        if kind:
            data = kind
            break
    if subset:
        data = [
            file
            for file in data
            if subset in PurePosixPath(file).parts[:-1] or PurePosixPath(file).name.startswith(subset)
        ]
    chosen = [file for file in data if not split or split_of(Path(file)) == split]
    if chosen:
        return chosen
    splits = ", ".join(sorted({split_of(Path(file)) for file in data} - {""}))
    wanted = f" for subset '{subset}'" * bool(
        subset
    ) + f" for split '{split}' (there are: {splits or 'none'})" * bool(split)
    raise DatasetError(
        f"the dataset '{name}' has no readable file{wanted}; readable are {', '.join(SUFFIXES)}"
    )
