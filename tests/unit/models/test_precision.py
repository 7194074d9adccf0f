"""Choice of the precision of sampling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.models import precision


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[torch.dtype, float]]:
    """Seconds of a product by type; the choice is made anew."""
    seconds: dict[torch.dtype, float] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    monkeypatch.setattr(precision, "_seconds", seconds.__getitem__)
    precision.is_bfloat16_fast.cache_clear()
    yield seconds
    precision.is_bfloat16_fast.cache_clear()


@pytest.mark.parametrize(
    ("ratio", "chosen"), [(2.0, torch.bfloat16), (1.1, torch.float32), (0.3, torch.float32)]
)
def test_auto_is_the_faster_precision(
    measured: dict[torch.dtype, float], ratio: float, chosen: torch.dtype
) -> None:
    measured |= {torch.float32: ratio, torch.bfloat16: 1.0}
    assert precision.sampling_type("auto") == chosen
    assert precision.sampling_type("f32") == torch.float32
    assert precision.sampling_type("bf16") == torch.bfloat16


def test_products_are_measured() -> None:
    assert precision._seconds(torch.float32) > 0
    assert precision._seconds(torch.bfloat16) > 0
