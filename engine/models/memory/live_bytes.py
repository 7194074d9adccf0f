"""Measurement of the memory that tensors occupy, on any device and with torch's fake tensors too."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all tensors created inside the context that still exist, and their maximum.

    A storage counts once, however many views it has; a kernel's internal memory is not counted.

    Args:
        without: shapes of tensors that are not counted.
    """

    def __init__(self, without: Collection[torch.Size] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._without = frozenset(without)
        self.now = 0
        self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

    def exclude(self, tensors: Sequence[Tensor]) -> None:
        """Exclude existing tensors and all their views from the count."""
        for tensor in tensors:
            self._seen[tensor.untyped_storage()] = None

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation and count the storages of its results."""
        result = func(*args, **(kwargs or {}))
        inputs = {
            id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(result):
            if not isinstance(leaf, Tensor) or leaf.shape in self._without:
                continue
            if id(leaf.untyped_storage()) not in inputs:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen[storage] = None
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size
