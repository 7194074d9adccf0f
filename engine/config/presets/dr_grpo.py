"""Dr. GRPO: GRPO done right (Liu et al. 2025, arXiv:2503.20783).

    A_i  = r_i − mean_j r_j
    loss = − E_i [ 1/L Σ_t min(ρ_it A_i, clip(ρ_it, 0.8, 1.2) A_i) ]

Both biases it names are gone: the division by the standard deviation, which favours tasks that are nearly
always or nearly never solved, and the division by |i|, which favours long failures. No KL term.
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "group_mean",
    "std_normalisation": "none",
    "ratio": "token",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "aggregation": "constant_length",
    "kl": "none",
    "filtered_reasons": (),
}
