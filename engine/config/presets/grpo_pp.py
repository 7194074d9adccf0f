"""GRPO++, the objective of DeepSWE (Agentica and Together AI 2025); the default preset.

    A_i  = r_i − mean_{j≠i} r_j
    loss = − E_i [ 1/L Σ_t min(ρ_it A_i, clip(ρ_it, 0.8, 1.28) A_i) ]

It takes clip-higher and no KL term from DAPO (arXiv:2503.14476), no division by the standard deviation and
the constant length from Dr. GRPO (arXiv:2503.20783), the leave-one-out baseline from RLOO
(arXiv:2402.14740), and adds compact filtering: trajectories that hit a limit carry no loss. Filtered ones
leave their group's baseline and still count in N; the published scripts differ there
(``engine/algorithms/README.md``).
"""

from __future__ import annotations

SETTINGS = {
    "baseline": "leave_one_out",
    "std_normalisation": "none",
    "ratio": "token",
    "clip_low": 0.2,
    "clip_high": 0.28,
    "aggregation": "constant_length",
    "kl": "none",
    "filtered_reasons": ("max_context", "max_response", "max_steps", "rollout_timeout", "env_timeout"),
    "filtered_baseline": "drop",
    "denominator": "all",
}
