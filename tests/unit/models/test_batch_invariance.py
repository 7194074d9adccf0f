"""The self-test that chooses tiles: it notices what it is there to notice."""

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
def _choose_anew() -> Iterator[None]:
    batch_invariance._chosen.clear()
    yield
    batch_invariance._chosen.clear()


def test_the_random_state_of_a_run_is_left_alone() -> None:
    net = model()
    before = torch.get_rng_state()
    choose_tiles(net)
    assert torch.equal(torch.get_rng_state(), before)


def odd_rows(function: Callable[[Tensor], Tensor], least: int) -> Callable[[Tensor], Tensor]:
    """Round every third row differently in products of at least so many rows."""

    def disturbed(x: Tensor) -> Tensor:
        out = function(x)
        return out if len(x) < least else out * (1 + (torch.arange(len(x)) % 3 == 2)[:, None] * 1e-7)

    return disturbed


def test_smaller_products_are_taken_where_large_ones_depend_on_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products = batch_invariance._products
    monkeypatch.setattr(
        batch_invariance, "_products", lambda net: [(odd_rows(f, 17), width) for f, width in products(net)]
    )
    choice = choose_tiles(model())
    assert choice.is_invariant
    assert choice.tiles.max_rows == 16


def test_where_no_product_holds_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    products = batch_invariance._products
    monkeypatch.setattr(
        batch_invariance, "_products", lambda net: [(odd_rows(f, 1), width) for f, width in products(net)]
    )
    assert not choose_tiles(model()).is_invariant


def test_attention_that_depends_on_the_place_in_a_tile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
