"""LoRA adapters by name on one server, compared with the built-in forward of the adapted model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config.learning.trainer import TrainerConfig
from engine.errors import EngineError
from engine.models.adapters import adapter_parameters, add_adapters, save_adapters, target_names
from engine.models.base import LanguageModel
from tests.drills.vllm.servers import PARITY, QUICKSTART, command, open_folder, request, started
from tests.unit.models.small import gap, prompt


def _write_adapter(folder: Path, seed: int) -> LanguageModel:
    """Write random adapters; return the model with them."""
    config = TrainerConfig(lora_rank=4)
    model = open_folder(QUICKSTART)
    add_adapters(model, config, seed=seed)
    weights = adapter_parameters(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in weights.values():
            weight.normal_(std=0.3)
    save_adapters(folder, weights, config, target_names(model), str(QUICKSTART))
    return model


async def test_adapters_are_served_by_name(vllm_python: Path, tmp_path: Path) -> None:
    base, ids = open_folder(QUICKSTART), prompt(60, 1)
    models = {name: _write_adapter(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))}
    settings = command(QUICKSTART, vllm_python, lora_rank=4)
    async with started(settings, tmp_path / "vllm.log") as (_, client):
        assert "adapters" in (await client.check()).features
        for version, name in enumerate(models, start=1):
            await client.load_adapter(name, tmp_path / name, version=version)
        await client.set_version(9)
        for version, (name, model) in enumerate(models.items(), start=1):
            generation = await client.generate(request(ids), request_id=name, model=name)
            assert gap(model, ids, generation) <= PARITY
            assert gap(base, ids, generation) > 0.01
            assert set(generation.versions) == {version}
            logprobs = await client.prompt_logprobs([*ids, *generation.ids], model=name)
            differences = zip(logprobs[len(ids) - 1 :], generation.logprobs, strict=True)
            assert max(abs(a - b) for a, b in differences) <= PARITY
        assert gap(base, ids, await client.generate(request(ids), request_id="base")) <= PARITY
        await client.unload_adapter("one")
        with pytest.raises(EngineError, match="one") as raised:
            await client.generate(request(ids), request_id="gone", model="one")
        assert raised.value.kind == "unloaded"
        with pytest.raises(EngineError) as raised:
            await client.load_adapter("three", tmp_path / "missing")
        assert raised.value.kind == "refused"
