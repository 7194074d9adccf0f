"""GSPO: group sequence policy optimization (Zheng et al. 2025, arXiv:2507.18071, eq. 5 to 7).

    s_i  = (π(i)/μ(i))^(1/|i|) = exp(1/|i| Σ_t log ρ_it)
    A_i  = (r_i − mean_j r_j) / std_j r_j
    loss = − E_i [ min(s_i A_i, clip(s_i, 1 − 3·10⁻⁴, 1 + 4·10⁻⁴) A_i) ]

The ratio belongs to the trajectory, not to a token, and is clipped as a whole; being a geometric mean it
moves far less than a token's, hence the narrow clip (section 5.1). No KL term.
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "group_mean",
    "std_normalisation": "group",
    "ratio": "sequence",
    "clip_low": 3e-4,
    "clip_high": 4e-4,
    "aggregation": "sequence_mean",
    "kl": "none",
    "filtered_reasons": (),
}
