"""Download of models from the Hugging Face Hub into the cache of its library.

Cached models are used without a request to the hub. ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN`` and
``HF_HUB_OFFLINE=1`` have their usual meaning. Weights are fetched as safetensors only, and no code.
The limits of ``engine.config.access.downloads`` apply.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from engine.config.access.downloads import HubLimits, hub_token
from engine.errors import CheckpointError, PreflightError
from engine.models.weights.safetensors_folder import INDEX, SINGLE, read_index

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "LICENSE*", "README.md")
_OTHER_FORMATS = ("original/*", "consolidated*", "onnx/*", "metal/*")


def fetch_model(ref: str) -> Path:
    """Return the folder of a hub model; missing files are downloaded.

    Args:
        ref: ``OWNER/NAME`` or ``OWNER/NAME@REVISION``.

    Raises:
        CheckpointError: there is no such model or revision, it is gated, or its cached index is damaged.
        PreflightError: it is not in the cache, and the hub cannot be reached.
    """
    from huggingface_hub import constants, errors, snapshot_download

    name, _, revision = ref.partition("@")
    token = hub_token(name, HubLimits.current().token_models)
    remedy = "set HF_TOKEN" if token is None else "have the administrator list it with +token"

    def snapshot(*, local: bool) -> Path:
        return Path(
            snapshot_download(
                name,
                revision=revision or None,
                local_files_only=local,
                allow_patterns=list(_FILES),
                ignore_patterns=list(_OTHER_FORMATS),
                token=token,
            )
        )

    with contextlib.suppress(errors.LocalEntryNotFoundError):
        folder = snapshot(local=True)
        if _is_complete(folder):
            return folder
    if constants.HF_HUB_OFFLINE:
        raise PreflightError(
            f"HF_HUB_OFFLINE is set and '{ref}' is not (completely) in the cache {constants.HF_HUB_CACHE}: "
            f"download it with `hf download {name}`"
        )
    try:
        _check_size(name, revision, token)
        return snapshot(local=False)
    except errors.GatedRepoError:
        raise CheckpointError(f"'{name}' is gated: accept its terms at the hub and {remedy}") from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"'{name}' has no revision '{revision}'") from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"'{name}' is no folder, and the hub has no such model (for a private one {remedy})"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
        raise PreflightError(
            f"'{ref}' is not in the cache {constants.HF_HUB_CACHE}, and the Hugging Face hub cannot be "
            f"reached ({type(error).__name__}): download it on another machine with `hf download {name}`, or "
            "set HF_ENDPOINT to a mirror"
        ) from None


def _check_size(name: str, revision: str, token: bool | None) -> None:
    """Raise CheckpointError where the files of a model are larger than this process may download."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    limits = HubLimits.current()
    if limits.max_gb is None:
        return
    info = HfApi(token=token).model_info(name, revision=revision or None, files_metadata=True)
    files = filter_repo_objects(
        info.siblings or (),
        allow_patterns=list(_FILES),
        ignore_patterns=list(_OTHER_FORMATS),
        key=lambda file: file.rfilename,
    )
    try:
        limits.check_size(name, sum(file.size or 0 for file in files))
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def _is_complete(folder: Path) -> bool:
    """Return whether a folder has its configuration and all files of its weights."""
    if not (folder / INDEX).is_file():
        return (folder / "config.json").is_file() and (folder / SINGLE).is_file()
    shards = set(read_index(folder / INDEX).values())
    return (folder / "config.json").is_file() and all((folder / shard).is_file() for shard in shards)
