"""Number of a draft's settings by the origin of their values.

A setting counts once, for the last origin that changed it: recipe against the defaults, preset or type of
policy against the recipe, dataset or model, person.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from webapp.runs.services.drafts import Origin


@dataclass(frozen=True, slots=True)
class Difference:
    """Settings of one origin."""

    origin: str
    label: str
    """Words after the number, such as ``by preset dapo``."""
    against: str
    count: int


def count_differences(
    origins: Iterable[Origin], *, base: str, preset: str, policy: str
) -> tuple[Difference, ...]:
    """Return the number of settings of each origin, zeros included.

    Args:
        origins: origins of all settings.
        base: name of the recipe or of the cloned run.
        preset: the chosen preset; empty for kinds without an objective.
        policy: the chosen type; empty for kinds without a policy.
    """
    counts = Counter(origins)
    words = (
        (Origin.HAND, "by hand", base),
        (Origin.FOLLOWS, "implied by dataset or model", base),
        (Origin.PRESET, f"by preset {preset}", base),
        (Origin.POLICY, f"by policy type {policy}", base),
        (Origin.BASE, f"by {base}", "the defaults"),
    )
    return tuple(Difference(origin, label, against, counts[origin]) for origin, label, against in words)
