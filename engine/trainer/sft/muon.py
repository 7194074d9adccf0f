"""Muon: momentum whose matrix updates are orthogonalised by Newton–Schulz iterations.

Used by the warm start, where it learns a little faster than AdamW alone on tiny models. Matrices of
one shape are orthogonalised in one batch, which matters on a CPU. Formulas: Jordan et al., "Muon"
(2024). To change the polynomial: ``_COEFFICIENTS``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from engine.models.base import LanguageModel

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(Optimizer):
    """Optimizer for 2-D hidden weights (embeddings and vectors belong to AdamW).

    Args:
        parameters: matrices only.
        lr: step length in spectral norm, before the factor sqrt(max(1, rows / columns)).
        momentum: of the Nesterov momentum.
        iterations: Newton–Schulz steps; 5 bring the singular values to about 0.7 … 1.2.
    """

    def __init__(
        self, parameters: Iterable[Tensor], *, lr: float = 0.02, momentum: float = 0.95, iterations: int = 5
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "iterations": iterations})
        if any(p.dim() != 2 for group in self.param_groups for p in group["params"]):
            raise ValueError("Muon takes matrices only")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update from the parameters' gradients; closures are not supported."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, members in by_shape.items():
                directions = torch.stack([self._direction(p, group["momentum"]) for p in members])
                updates = orthogonalise(directions, group["iterations"])
                scale = -group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(members, updates, strict=True):
                    parameter.add_(update, alpha=scale)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum"]
        gradient = parameter.grad
        assert gradient is not None
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum)


class MuonWithAdam:
    """Optimizer of the warm starts: Muon for the layers' matrices, AdamW for the rest.

    Args:
        model: changed in place.
        muon_rate: peak learning rate of matrices.
        adam_rate: peak learning rate of everything else.
    """

    def __init__(self, model: LanguageModel, *, muon_rate: float, adam_rate: float) -> None:
        matrices = [p for block in model.blocks for p in block.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
        self._parameters = list(model.parameters())
        adam = torch.optim.AdamW(rest, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.optimizers: tuple[Optimizer, Optimizer] = (Muon(matrices, lr=muon_rate), adam)
        self._peaks = muon_rate, adam_rate

    def step(self, factor: float) -> None:
        """Clip the gradient to norm 1, step at this share of the peak rates, and clear the gradient."""
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimizer, peak in zip(self.optimizers, self._peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Move all singular values of ``matrices`` [N, rows, columns] near 1; shape and dtype are kept.

    Computed in bfloat16: the singular values only come near 1 anyway.
    """
    a, b, c = _COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(1, 2)
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(iterations):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    result: Tensor = x.to(matrices.dtype)
    return result if wide else result.transpose(1, 2)
