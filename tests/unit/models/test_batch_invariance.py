"""Selection of tiles by the self-test of batch invariance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models.builtin import batch_invariance, cached_attention
from engine.models.builtin.batch_invariance import choose_tiles
from tests.unit.models.small import model


@pytest.fixture(autouse=True)
def _clear_chosen_tiles() -> Iterator[None]:
    batch_invariance._chosen.clear()
    yield
    batch_invariance._chosen.clear()


def test_choosing_tiles_preserves_the_random_state() -> None:
    net = model()
    before = torch.get_rng_state()
    choose_tiles(net)
    assert torch.equal(torch.get_rng_state(), before)


def odd_rows(function: Callable[[Tensor], Tensor], least: int) -> Callable[[Tensor], Tensor]:
    """Return a function that rounds every third row differently for at least ``least`` rows."""

    def disturbed(x: Tensor) -> Tensor:
        out = function(x)
        return out if len(x) < least else out * (1 + (torch.arange(len(x)) % 3 == 2)[:, None] * 1e-7)

    return disturbed


def test_smaller_tiles_are_chosen_if_large_products_depend_on_the_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products = batch_invariance._products
    monkeypatch.setattr(
        batch_invariance, "_products", lambda net: [(odd_rows(f, 17), width) for f, width in products(net)]
    )
    choice = choose_tiles(model())
    assert choice.is_invariant
    assert choice.tiles.max_rows == 16


def test_choice_is_not_invariant_if_all_products_depend_on_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    products = batch_invariance._products
    monkeypatch.setattr(
        batch_invariance, "_products", lambda net: [(odd_rows(f, 1), width) for f, width in products(net)]
    )
    assert not choose_tiles(model()).is_invariant


def test_one_query_tiles_are_chosen_if_attention_varies_in_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = cached_attention._attend_tiles

    def disturbed(q: Tensor, *rest: Any) -> Tensor:
        out = attend(q, *rest).clone()
        if q.shape[2] > 2:  # more than the two heads that share a key head: several queries in a tile
            out[:, :, -1] *= 1 + 1e-6
        return out

    monkeypatch.setattr(cached_attention, "_attend_tiles", disturbed)
    choice = choose_tiles(model())
    assert choice.is_invariant
    assert choice.tiles.queries == 1
