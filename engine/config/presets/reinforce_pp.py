"""REINFORCE++: REINFORCE with advantages normalised over the whole batch (Hu et al. 2025, arXiv:2501.03262).

    R_i  = r_i − β Σ_t log π/π_ref,  β = 0.01
    A_i  = (R_i − mean_batch R) / std_batch R
    loss = − 1/Σ_i |i| Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 0.8, 1.2) A_i)

Mean and deviation are those of all trajectories of the update, so a group may even have one member. The
paper's penalty of a token counts from that token on; here a trajectory's total penalty is subtracted from its
reward, for one advantage per trajectory. β is a choice. The variant with a baseline adds
``baseline = group_mean``.
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "batch_mean",
    "std_normalisation": "batch",
    "ratio": "token",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "aggregation": "token_mean",
    "kl": "k1",
    "kl_placement": "reward",
    "kl_coefficient": 0.01,
    "filtered_reasons": (),
}
