"""Named presets of the objective's settings: one module each, with its equation and its paper.

Notation of the equations: N trajectories of an optimizer step, trajectory i with reward r_i, advantage A_i
and sampled tokens t; π is the policy, μ the sampler (or the trainer's weights before the update where an
importance correction is on), ρ = π/μ; E_i is the mean over the N trajectories, L the context limit.
A preset lists its distinctive settings; every other setting keeps its default in ``AlgorithmConfig``.

To add one: a module with ``SETTINGS``, its name in ``PresetName``, a line in ``PRESETS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from engine.config.presets import cispo, dapo, dr_grpo, grpo, grpo_pp, gspo, reinforce_pp, rloo

PresetName = Literal["grpo", "dr_grpo", "rloo", "dapo", "gspo", "cispo", "reinforce_pp", "grpo_pp"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "grpo": grpo.SETTINGS,
    "dr_grpo": dr_grpo.SETTINGS,
    "rloo": rloo.SETTINGS,
    "dapo": dapo.SETTINGS,
    "gspo": gspo.SETTINGS,
    "cispo": cispo.SETTINGS,
    "reinforce_pp": reinforce_pp.SETTINGS,
    "grpo_pp": grpo_pp.SETTINGS,
}
