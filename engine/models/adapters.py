"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685), with peft's layers and peft's export format.

The sampler's model keeps plain weights: after an update base + adapters are folded into it. Training runs on
a copy with adapters injected, so that the frozen base never collects rounding errors.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import save_file
from torch import Tensor

from engine.config.trainer import TrainerConfig
from engine.models.base import LanguageModel

_NAME = "default"


class Adapters:
    """LoRA adapters of one model.

    Args:
        model: receives base plus adapters at each ``fold``.
        base: the frozen weights; None: ``model`` as it is now.
        config: rank, scale and targets.
        seed: seed of the adapters' initial values; the first update starts from exactly the base.
    """

    def __init__(
        self, model: LanguageModel, base: LanguageModel | None, config: TrainerConfig, seed: int
    ) -> None:
        self._folded = model
        self.model = copy.deepcopy(base or model).to(next(model.parameters()).device)
        """The trained model: base weights with adapters."""
        self.settings = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
            target_modules=list(config.lora_targets),
            task_type="CAUSAL_LM",
        )
        self.model.requires_grad_(False)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            inject_adapter_in_model(self.settings, self.model, adapter_name=_NAME)

    @torch.no_grad()
    def fold(self) -> None:
        """Write base weights plus adapters into the sampler's model."""
        weights = self._folded.state_dict()
        for name, module in self.model.named_modules():
            if isinstance(module, LoraLinear):
                base = module.get_parameter("base_layer.weight")
                weights[f"{name}.weight"].copy_(base + module.get_delta_weight(_NAME))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the adapters alone, under peft's names."""
        found: dict[str, Tensor] = get_peft_model_state_dict(
            self.model, adapter_name=_NAME, state_dict=self.model.state_dict()
        )
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the adapters. Raises RuntimeError when a shape differs."""
        set_peft_model_state_dict(self.model, state, adapter_name=_NAME)
        self.fold()


def save_adapters(folder: Path, adapters: dict[str, Tensor], config: TrainerConfig, base: str) -> None:
    """Write an adapter folder that ``peft.PeftModel.from_pretrained`` opens over the base policy.

    Args:
        folder: created.
        adapters: ``Adapters.state_dict()``.
        config: rank, scale and targets they were trained with.
        base: where the base policy is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        target_modules=list(config.lora_targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    settings.save_pretrained(str(folder))
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in adapters.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
