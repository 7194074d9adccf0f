"""DAPO: decoupled clip and dynamic sampling policy optimization (Yu et al. 2025, arXiv:2503.14476, § 3).

    R_i  = r_i − min(1, max(0, (|i| − (L − B)) / B)),  B = L/5
    A_i  = (R_i − mean_j R_j) / std_j R_j
    loss = − 1/Σ_i |i| Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 0.8, 1.28) A_i)

Its four parts: clip-higher; dynamic sampling, which replaces groups of equal rewards by fresh
ones; the token mean over the whole step; the soft overlong penalty (the paper's 4,096 tokens of 20,480 are
a fifth of the limit). No KL term, and trajectories that hit a limit train with their penalty.
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "group_mean",
    "std_normalisation": "group",
    "ratio": "token",
    "clip_low": 0.2,
    "clip_high": 0.28,
    "aggregation": "token_mean",
    "kl": "none",
    "filtered_reasons": (),
    "zero_advantage_groups": "drop",
    "dynamic_sampling": True,
    "overlong_buffer": 0.2,
    "overlong_penalty": 1.0,
}
