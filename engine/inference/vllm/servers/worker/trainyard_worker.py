"""Extension of vLLM's workers: new weights from a folder into the live model, checked before one is touched.

Imported in each worker process before the model loads (``--worker-extension-cls``); only torch, safetensors
and vllm are imported. On the CPU it makes linear layers compute on their original weights: vLLM packs them at
load and drops the originals, after which an update changes nothing, or half of the model, without an error.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from vllm.model_executor.layers import utils as layer_utils
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.platforms import current_platform

_expected: dict[str, tuple[int, ...]] = {}
"""Names and shapes of the tensors that the model was first loaded from."""
_TIED = "lm_head.weight"
"""Weight that a folder may have or leave out where the model has tied embeddings."""


def _compute_on_original(layer: nn.Module, remove_weight: bool) -> None:  # noqa: ARG001 - vLLM's signature
    vars(layer)["cpu_linear"] = nn.functional.linear


if current_platform.is_cpu():
    layer_utils.dispatch_cpu_unquantized_gemm = _compute_on_original

_load = DefaultModelLoader.get_all_weights


def _load_and_record(self: Any, model_config: Any, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in _load(self, model_config, model):
        _expected.setdefault(name, tuple(tensor.shape))
        yield name, tensor


DefaultModelLoader.get_all_weights = _load_and_record


class TrainyardWorker:
    """Methods that ``/collective_rpc`` calls in every worker; merged into vLLM's worker class."""

    vllm_config: Any
    model_runner: Any
    reload_weights: Any

    def trainyard_facts(self) -> dict[str, Any]:
        """Return what the worker serves."""
        config = self.vllm_config.model_config
        return {"vocabulary": config.get_vocab_size(), "tensors": len(_expected)}

    def trainyard_load_folder(self, folder: str) -> dict[str, Any]:
        """Load the safetensors files of a folder into the live model, tensor by tensor.

        Names and shapes must be those of the folder that the server started from.

        Returns:
            ``tensors`` and ``bytes`` loaded, or ``refused``: why nothing was touched.
        """
        try:
            files = _files(Path(folder))
            refusal = _refusal(_shapes(files), is_tied=self._has_tied_embeddings())
        except (OSError, ValueError, SafetensorError) as error:
            refusal = f"cannot be read: {error}"
        if refusal:
            return {"refused": f"{folder} {refusal}"}
        if current_platform.is_cpu():
            _forget_packed_experts(self.model_runner.get_model())
        meter = {"tensors": 0, "bytes": 0}
        self.reload_weights(weights_iterator=_tensors(files, meter))
        return meter

    def _has_tied_embeddings(self) -> bool:
        return bool(getattr(self.vllm_config.model_config.hf_text_config, "tie_word_embeddings", False))


def _files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: those of its index where there is one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return sorted(folder.glob("*.safetensors"))


def _shapes(files: list[Path]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        with safe_open(path, framework="pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return shapes


def _refusal(found: dict[str, tuple[int, ...]], *, is_tied: bool) -> str:
    """Return why tensors of these names and shapes cannot replace the model's; empty where they can."""
    optional = {_TIED} if is_tied else set()
    missing = sorted(_expected.keys() - found.keys() - optional)
    unknown = sorted(found.keys() - _expected.keys() - optional)
    resized = sorted(name for name in found.keys() & _expected.keys() if found[name] != _expected[name])
    complaints = [
        f"{verb} {len(names)} of the model's tensors, the first is {names[0]}"
        for verb, names in (("lacks", missing), ("changes the shape of", resized))
        if names
    ]
    if unknown:
        complaints.append(f"has {len(unknown)} tensors that the model has not, the first is {unknown[0]}")
    return "; ".join(complaints)


def _forget_packed_experts(model: nn.Module) -> None:
    """Let experts be packed again after the load, as at the start: vLLM does it once only."""
    for module in model.modules():
        if isinstance(module, RoutedExperts):
            module.quant_method.moe_kernel = None


def _tensors(files: list[Path], meter: dict[str, int]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in files:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                tensor = tensors.get_tensor(name)
                meter["tensors"] += 1
                meter["bytes"] += tensor.nbytes
                yield name, tensor
