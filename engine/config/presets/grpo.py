"""GRPO: group relative policy optimization (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3 and 4).

    A_i  = (r_i − mean_j r_j) / std_j r_j
    loss = − E_i [ 1/|i| Σ_t ( min(ρ_it A_i, clip(ρ_it, 0.8, 1.2) A_i) − β k3_it ) ]
    k3   = π_ref/π − log(π_ref/π) − 1,  β = 0.04

The paper does not print ε; 0.2 is PPO's. Every trajectory trains, also those that hit a limit.
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "group_mean",
    "std_normalisation": "group",
    "ratio": "token",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "aggregation": "sequence_mean",
    "kl": "k3",
    "kl_placement": "loss",
    "kl_coefficient": 0.04,
    "filtered_reasons": (),
}
