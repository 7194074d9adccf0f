"""Paged cache of any model's keys and values.

Pages are those of Kwon et al. 2023 (arXiv:2309.06180): rows with a common prefix share them. Prompts are fed
in chunks. A token's last bits may depend on the batch, as batched products round differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.attention import Segments, SingleQueries
from engine.models.base import LanguageModel, logits_of, scaled_logits
from engine.models.caches.base import Piece, split_into_chunks
from engine.models.logprobs import product

PAGE = 16
"""Tokens per page."""
_CHUNK = 2048
"""Maximum number of tokens of one forward."""
_BATCH = 16
"""Maximum number of pieces of one token whose keys are padded to the longest."""
_GROWTH = 1.5


class PagedCache:
    """``engine.models.caches.base.Cache`` of a model that reads packed rows.

    Keys and values have the type that the model computes them in.

    Args:
        model: the model whose keys and values are stored.
        rows: maximum number of sequences.
        low: half precision of matrix products, as in the trainer; None computes in the weights' own.
    """

    is_invariant: bool | None = False

    def __init__(self, model: LanguageModel, rows: int, *, low: torch.dtype | None = None) -> None:
        self._model = model
        self._low = low
        self._device = model.head.weight.device
        self._rows: list[list[int]] = [[] for _ in range(rows)]
        """Pages of each row."""
        self._users: list[int] = []
        """Number of rows that use each page."""
        self._free: list[int] = []
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of each layer, [pages × PAGE, kv_heads, D]."""

    @torch.no_grad()
    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Continue sequences by their next tokens; return logits [n, V]."""
        ends: dict[int, Tensor] = {}
        # Pieces of one token are batched with those of similar length.
        for chunk in split_into_chunks(sorted(pieces, key=lambda piece: piece.start), _CHUNK):
            ids = torch.tensor([i for piece in chunk for i in piece.ids], device=self._device)
            with torch.autocast(self._device.type, self._low, enabled=self._low is not None):
                hidden = self._model.packed_hidden(ids, self._segments(chunk))
            for piece, end in zip(chunk, accumulate(len(piece.ids) for piece in chunk), strict=True):
                ends[piece.row] = hidden[end - 1]  # the last chunk of a cut piece wins
        return self._logits(torch.stack([ends[piece.row] for piece in pieces]))

    def copy(self, source: int, target: int, start: int, end: int) -> None:  # noqa: ARG002
        """Copy positions up to ``end`` of one row to another; whole pages are shared."""
        self.clear(target)
        shared = end // PAGE
        self._rows[target] = self._rows[source][:shared]
        for page in self._rows[target]:
            self._users[page] += 1
        if end % PAGE:
            page, own = self._rows[source][shared], self._take_page()
            self._rows[target].append(own)
            for number, stores in list(self.layers.items()):
                for store in self.layer(number, stores):
                    store[own * PAGE : (own + 1) * PAGE] = store[page * PAGE : (page + 1) * PAGE]

    def swap(self, a: int, b: int, length: int) -> None:  # noqa: ARG002
        """Exchange two rows."""
        self._rows[a], self._rows[b] = self._rows[b], self._rows[a]

    def clear(self, row: int) -> None:
        """Free the pages that no other row uses."""
        for page in self._rows[row]:
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
        self._rows[row] = []

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self._model.head
        if self._low is None:
            return logits_of(hidden, head)
        hidden, weight = hidden.to(self._low), head.weight.to(self._low)
        out = torch.empty(len(hidden), len(weight), device=self._device)
        return scaled_logits(product(hidden, weight.T, out=out), head)

    def _segments(self, chunk: Sequence[Piece]) -> Segments:
        """Return the layout of a forward: its queries are the pieces, its keys their whole sequences."""
        slots = [self._slots(piece.row, piece.start + len(piece.ids)) for piece in chunk]
        lengths = [len(own) for own in slots]
        positions = [torch.arange(piece.start, length) for piece, length in zip(chunk, lengths, strict=True)]
        new = [own[piece.start :] for own, piece in zip(slots, chunk, strict=True)]
        is_single = self._device.type == "cpu" and all(len(piece.ids) == 1 for piece in chunk)
        singles = _batches(lengths) if is_single else ()
        widths = [batch.width for batch in singles for _ in batch.num_keys] or lengths
        seen = [functional.pad(own, (0, width - len(own))) for own, width in zip(slots, widths, strict=True)]
        return Segments(
            positions=torch.cat(positions).to(self._device),
            lengths=tuple(len(piece.ids) for piece in chunk),
            keys=tuple(
                ((end - width, end - width + length),)
                for end, width, length in zip(accumulate(widths), widths, lengths, strict=True)
            ),
            store=_Chunk(self, torch.cat(new).to(self._device), torch.cat(seen).to(self._device)),
            singles=singles,
        )

    def _slots(self, row: int, length: int) -> Tensor:
        """Return the slots of a row's first ``length`` tokens, int64; pages are added as needed."""
        pages = self._rows[row]
        while len(pages) * PAGE < length:
            pages.append(self._take_page())
        starts = torch.tensor(pages, dtype=torch.int64).unsqueeze(1) * PAGE
        return (starts + torch.arange(PAGE)).flatten()[:length]

    def _take_page(self) -> int:
        if not self._free:
            self._free.append(len(self._users))
            self._users.append(0)
        page = self._free.pop()
        self._users[page] = 1
        return page

    def layer(self, number: int, like: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the stores of a layer's keys and values, with room for every page.

        Args:
            number: of the layer.
            like: keys and values, for their shape and type.
        """
        need = len(self._users) * PAGE
        stores = self.layers.get(number)
        if stores is None or len(stores[0]) < need:
            room = int(need * _GROWTH)
            old = stores or tuple(x.new_zeros(0, *x.shape[1:]) for x in like)
            keys, values = (functional.pad(x, (0, 0, 0, 0, 0, room - len(x))) for x in old)
            self.layers[number] = keys, values
        return self.layers[number]


def _batches(lengths: Sequence[int]) -> tuple[SingleQueries, ...]:
    """Return the batches of consecutive pieces of one token, which have these numbers of keys.

    No piece is padded to more than twice its keys.
    """
    parts: list[list[int]] = []
    for length in lengths:
        part = [*parts[-1], length] if parts else []
        if not part or len(part) > _BATCH or max(part) > 2 * min(part):
            parts.append([length])
        else:
            parts[-1] = part
    return tuple(SingleQueries(num_keys=tuple(part), width=max(part)) for part in parts)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The store of one forward (``engine.models.attention.Store``)."""

    cache: PagedCache
    new: Tensor
    """int64 [T]: slots of the forward's own tokens."""
    seen: Tensor
    """int64 [K]: slots of the keys of all its pieces; slot 0 as padding."""

    def exchange(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the forward's own keys and values; return those of the pieces' whole sequences."""
        keys, values = self.cache.layer(layer, (k, v))
        keys[self.new], values[self.new] = k, v
        # Indexing by brackets is several times slower on a CPU.
        return keys.index_select(0, self.seen), values.index_select(0, self.seen)
