"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv:2402.14740, eq. 1 and 8).

    R_i  = r_i − β Σ_t log π/π_ref,  β = 0.03
    A_i  = R_i − mean_{j≠i} R_j
    loss = − E_i [ A_i Σ_t log π_it ]

The whole trajectory is one action: tokens are summed and not divided (a constant length of 1), nothing is
clipped, and the KL penalty is part of the reward. Gradients therefore grow with the length of
trajectories, and ``trainer.max_grad_norm`` is nearly always active. The paper tunes β by data set; 0.03 is a
choice.
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "leave_one_out",
    "std_normalisation": "none",
    "ratio": "none",
    "aggregation": "constant_length",
    "normalisation_length": 1,
    "kl": "k1",
    "kl_placement": "reward",
    "kl_coefficient": 0.03,
    "filtered_reasons": (),
}
