"""One tiny random model of each of four families: parity, and weights replaced by *different* ones.

Loading the current weights again would prove nothing: an engine that ignores them would pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drills.vllm.servers import PARITY, command, open_folder, request, started
from tests.unit.models.small import gap, prompt, recomputed
from tests.unit.models.tiny_families import write_tiny

_SIZES: dict[str, Any] = {"head_dim": 32, "hidden_size": 64, "intermediate_size": 96}
"""vLLM's CPU kernels need multiples of 32."""
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {"moe_intermediate_size": 48},
    "llama": {},
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 32},
}

_RANKS = {"llama": 2}
"""Number of ranks of the families whose weights are split."""


@pytest.mark.parametrize("family", _FAMILIES)
async def test_logprobs_match_the_builtin_forward_also_after_loading_other_weights(
    family: str, vllm_python: Path, tmp_path: Path
) -> None:
    sizes = _SIZES | _FAMILIES[family]
    first = write_tiny(tmp_path / "first", family, **sizes)
    second = write_tiny(tmp_path / "second", family, seed=1, max_shard_size="100KB", **sizes)
    assert len(list(second.glob("*.safetensors"))) > 1
    ids = [5 + i % 300 for i in prompt(90, 1)]
    settings = command(first, vllm_python, tensor_parallel=_RANKS.get(family, 1))
    async with started(settings, tmp_path / "vllm.log") as (_, client):
        models = [open_folder(first), open_folder(second)]
        sums = await client.checksums()

        async def gaps(name: str) -> list[float]:
            generation = await client.generate(request(ids, seed=3), request_id=name, salt=name)
            logprobs = await client.prompt_logprobs(ids)
            return [
                max(
                    gap(model, ids, generation),
                    *(abs(a - b) for a, b in zip(logprobs, recomputed(model, ids), strict=True)),
                )
                for model in models
            ]

        right, wrong = await gaps("one")
        assert right <= PARITY
        assert wrong > 0.01  # the tolerance separates the two models
        for version in (1, 2, 3):
            await client.load_weights([first, second][version % 2], version)
            differences = await gaps(f"version {version}")
            assert differences[version % 2] <= PARITY
            assert differences[1 - version % 2] > 0.01
        changed_sums = await client.checksums()
        assert changed_sums.keys() == sums.keys()
        assert all(changed_sums[name] != sums[name] for name in sums if "norm" not in name)
        await client.load_weights(first, 4)
        assert await client.checksums() == sums
