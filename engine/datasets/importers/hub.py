"""Downloads of datasets from the Hugging Face Hub, file by file into ``home/hub`` at one commit.

``huggingface_hub`` resumes downloads and skips complete files. A branch or tag is resolved to its commit,
which provenance records. ``HF_ENDPOINT`` and ``HF_TOKEN`` have their usual meaning; ``HF_HUB_OFFLINE=1`` uses
downloaded files only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from engine.config.access.downloads import HubLimits, hub_token
from engine.config.access.places import HUB_DATASET
from engine.datasets.importers.files import SUFFIXES
from engine.datasets.importers.reading import Source, split_of
from engine.errors import DatasetError, PreflightError
from engine.files import atomic_write


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
        home: the data folder; files are stored in its ``hub/<name>/<commit>``.
        revision: branch, tag or commit; empty is the main branch.
        subset: the configuration, if a dataset has several.
        split: download only the files of this split.
        whole: download every file, for formats with task folders.
        report: called with a message for each file.

    Raises:
        DatasetError: no such dataset, revision, subset or split; or it has no readable files.
        PreflightError: the hub cannot be reached, or the library is missing.
    """
    if HUB_DATASET.fullmatch(name) is None:
        raise DatasetError(f"'{name}' is not a dataset name of the hub: write hf:OWNER/NAME")
    hub = _library()
    limits = HubLimits.current()
    token = hub_token(name, limits.token_datasets)
    root = home / "hub" / name.replace("/", "--")
    with _explained(hub, name, revision, token):
        commit, files = _listing(hub, name, revision, root, token)
        chosen = list(files) if whole else choose_files(list(files), subset=subset, split=split, name=name)
        folder = root / commit
        try:
            limits.check_size(name, sum(files[file] for file in chosen if not (folder / file).is_file()))
        except ValueError as error:
            raise DatasetError(str(error)) from None
        for number, file in enumerate(chosen, start=1):
            if _is_offline() or (folder / file).is_file():
                continue
            report(f"fetching {file} ({number} of {len(chosen)})")
            hub.hf_hub_download(
                name,
                file,
                repo_type="dataset",
                revision=commit,
                local_dir=folder,
                endpoint=_endpoint(),
                token=token,
            )
    return Source(path=folder, only=frozenset() if whole else frozenset(chosen), revision=commit)


@contextlib.contextmanager
def _explained(hub: Any, name: str, revision: str, token: bool | None) -> Iterator[None]:
    """Context manager: re-raise the library's errors with their remedy."""
    errors = hub.errors
    remedy = "set HF_TOKEN"
    if token is False:
        remedy = "have the administrator list it with +token in TRAINYARD_HUB_DATASETS"
    try:
        yield
    except errors.GatedRepoError:
        raise DatasetError(f"'{name}' is gated: accept its terms at the hub and {remedy}") from None
    except errors.RevisionNotFoundError:
        raise DatasetError(f"'{name}' has no revision '{revision}'") from None
    except errors.RepositoryNotFoundError:
        raise DatasetError(f"the hub has no dataset '{name}' (for a private one {remedy})") from None
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


def _listing(
    hub: Any, name: str, revision: str, root: Path, token: bool | None
) -> tuple[str, dict[str, int]]:
    """Return the commit and the sizes of its files; offline, the downloaded files with size 0."""
    reference = root / "refs" / (revision or "main").replace("/", "--")
    if not _is_offline():
        api = hub.HfApi(endpoint=_endpoint(), token=token)
        info = api.dataset_info(name, revision=revision or None, files_metadata=True)
        reference.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(reference, str(info.sha))
        sizes = {str(file.rfilename): file.size or 0 for file in info.siblings or ()}
        return str(info.sha), {file: sizes[file] for file in sizes if ".." not in PurePosixPath(file).parts}
    folder = root / reference.read_text() if reference.is_file() else root
    if folder == root:
        raise DatasetError(f"HF_HUB_OFFLINE is set and '{name}' has not been downloaded yet")
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return folder.name, {path.as_posix(): 0 for path in paths if path.parts[0] != ".cache"}


def choose_files(files: Sequence[str], *, subset: str, split: str, name: str) -> list[str]:
    """Return the data files in a stable order: one kind (parquet before others), subset and split.

    Raises:
        DatasetError: no file matches; the message lists the splits.
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
