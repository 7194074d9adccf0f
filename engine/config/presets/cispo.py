"""CISPO: clipped importance-sampling weights (MiniMax-M1 2025, arXiv:2506.13585, eq. 4 and 5).

    A_i  = (r_i − mean_j r_j) / std_j r_j
    loss = − 1/Σ_i |i| Σ_i Σ_t sg(min(ρ_it, 5)) A_i log π_it

sg stops the gradient: a capped token still learns, where PPO's clip would cut it off. There is no lower bound
(ε_low = 1) and no KL term. The paper does not print ε_high; a cap of 5 is ScaleRL's (arXiv:2510.13786).
Dynamic sampling and a length penalty, which MiniMax-M1 also takes from DAPO, are settings of their own.
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "group_mean",
    "std_normalisation": "group",
    "ratio": "cispo",
    "clip_low": 1.0,
    "clip_high": 4.0,
    "aggregation": "token_mean",
    "kl": "none",
    "filtered_reasons": (),
}
