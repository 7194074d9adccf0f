"""Rules that select one rollout of a task.

    ef        highest P(YES)
    eb        most regression passes, then most reproduction passes
    hybrid    the top half (or the top n) by P(YES) stay; of these as eb, then highest P(YES)
    shortest  fewest steps among the rollouts with a patch
    majority  the patch that most rollouts submitted
    oracle    resolved, if any is: the ceiling, pass@K

A rule has two methods: ``best`` defines it on given candidates, ``expected`` is its outcome over all subsets
of K. Ties: ``best`` returns all candidates that the rule cannot distinguish, ``expected`` counts their mean,
and ``pick`` takes the one with the smallest trajectory id. To add a rule: a class with both, and a test that
compares them over all subsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from engine.errors import ConfigError
from engine.verifiers.selection.candidates import Candidate, require_scores
from engine.verifiers.selection.counting import Class, best_of_filtered, best_of_ordered, most_frequent


class Rule(Protocol):
    """A rule that selects among the rollouts of one task."""

    @property
    def name(self) -> str:
        """Name in tables and on the command line."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields of a candidate that must be known."""
        ...

    def best(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the equal candidates that the rule selects; at least one.

        Raises:
            MissingScoreError: a candidate lacks a score that the rule needs.
        """
        ...

    def expected(self, candidates: Sequence[Candidate], ks: Sequence[int]) -> list[float]:
        """Return, for each K, the probability that selecting from K random candidates yields a resolved one.

        Exact, K drawn without replacement.

        Raises:
            MissingScoreError: a candidate lacks a score that the rule needs, or is not graded.
            ConfigError: a K is below 1 or above the number of candidates.
        """
        ...


def pick(rule: Rule, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate to submit; of equal ones the one with the smallest trajectory id.

    Raises:
        ConfigError: there are no candidates.
        MissingScoreError: a candidate lacks a score that the rule needs.
    """
    if not candidates:
        raise ConfigError("there are no rollouts to select from; give at least one")
    return min(rule.best(candidates), key=lambda candidate: candidate.trajectory_id)


@dataclass(frozen=True, slots=True)
class Highest:
    """Select the highest scores, compared one after the other."""

    name: str
    needs: tuple[str, ...]
    key: Callable[[Candidate], tuple[float, ...]]

    def best(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates with the highest scores."""
        require_scores(candidates, self.needs, self.name)
        highest = max(map(self.key, candidates))
        return [candidate for candidate in candidates if self.key(candidate) == highest]

    def expected(self, candidates: Sequence[Candidate], ks: Sequence[int]) -> list[float]:
        """Return the exact Best@K by order statistics."""
        require_scores(candidates, self.needs, self.name)
        _require_outcomes(candidates, ks)
        classes = [_class(members) for members in _classes(candidates, self.key)]
        return [best_of_ordered(classes, k) for k in ks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """Select by tests among the best by P(YES).

    The filter compares P(YES), then regression and reproduction passes; the rest compares regression passes,
    reproduction passes and P(YES). Candidates equal in all three are one class, even if the filter cuts it.
    """

    keep: int | None = None
    """Number of candidates that stay; None is half of them, rounded down, but at least ``minimum``."""
    minimum: int = 1
    """R2E-Gym's notebook keeps at least 3."""
    name: str = "hybrid"
    needs: tuple[str, ...] = ("p_yes", "regression_passes", "reproduction_passes")

    def __post_init__(self) -> None:
        if self.minimum < 1 or (self.keep is not None and self.keep < 1):
            raise ConfigError(f"{self.name} is set to keep fewer than 1 rollout; the least is 1")

    def num_kept(self, k: int) -> int:
        """Return the number of K candidates that stay."""
        return min(k, max(self.minimum, k // 2) if self.keep is None else self.keep)

    def best(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates with the scores of the selected one."""
        require_scores(candidates, self.needs, self.name)
        kept = sorted(candidates, key=_by_verifier, reverse=True)[: self.num_kept(len(candidates))]
        highest = max(map(_by_tests, kept))
        return [candidate for candidate in candidates if _by_tests(candidate) == highest]

    def expected(self, candidates: Sequence[Candidate], ks: Sequence[int]) -> list[float]:
        """Return the exact Best@K, counted over the last candidate that stays."""
        require_scores(candidates, self.needs, self.name)
        _require_outcomes(candidates, ks)
        ordered = sorted(candidates, key=_by_verifier, reverse=True)
        finally_ordered = sorted(range(len(ordered)), key=lambda i: (_by_tests(ordered[i]), -i), reverse=True)
        places = [0] * len(ordered)
        for place, position in enumerate(finally_ordered):
            places[position] = place
        groups = {_by_tests(members[0]): _class(members) for members in _classes(candidates, _by_tests)}
        classes = [groups[_by_tests(candidate)] for candidate in ordered]
        return [best_of_filtered(places, classes, k, self.num_kept(k)) for k in ks]


@dataclass(frozen=True, slots=True)
class Majority:
    """Select the patch that most rollouts submitted; an empty one only if all are empty."""

    name: str = "majority"
    needs: tuple[str, ...] = ("patch_hash",)

    def best(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates with the most frequent patch, or several equally frequent ones."""
        require_scores(candidates, self.needs, self.name)
        votes: Counter[str | None] = Counter(
            candidate.patch_hash for candidate in candidates if candidate.patch_hash
        )
        if not votes:
            return list(candidates)
        most = max(votes.values())
        return [candidate for candidate in candidates if votes[candidate.patch_hash] == most]

    def expected(self, candidates: Sequence[Candidate], ks: Sequence[int]) -> list[float]:
        """Return the exact Best@K, counted over the votes of the winning patch."""
        require_scores(candidates, self.needs, self.name)
        _require_outcomes(candidates, ks)
        patches: dict[str | None, list[Candidate]] = {"": []}
        for candidate in candidates:
            patches.setdefault(candidate.patch_hash, []).append(candidate)
        blank = _class(patches.pop(""))
        return most_frequent([_class(members) for members in patches.values()], blank, ks)


def _by_verifier(one: Candidate) -> tuple[float, ...]:
    return _known(one.p_yes), _known(one.regression_passes), one.reproduction_passes or 0.0


def _by_tests(one: Candidate) -> tuple[float, ...]:
    return _known(one.regression_passes), one.reproduction_passes or 0.0, _known(one.p_yes)


def _known(score: float | None) -> float:
    assert score is not None, "require_scores comes first"
    return score


def _classes(
    candidates: Sequence[Candidate], key: Callable[[Candidate], tuple[float, ...]]
) -> list[list[Candidate]]:
    """Return the candidates by equal keys, highest first."""
    return [list(members) for _, members in groupby(sorted(candidates, key=key, reverse=True), key)]


def _class(members: Sequence[Candidate]) -> Class:
    return Class(len(members), sum(member.resolved is True for member in members))


def _require_outcomes(candidates: Sequence[Candidate], ks: Sequence[int]) -> None:
    require_scores(candidates, ("resolved",), "Best@K")
    for k in ks:
        if not 1 <= k <= len(candidates):
            raise ConfigError(
                f"K = {k} with {len(candidates)} rollouts; K is between 1 and the number of rollouts"
            )


EF: Rule = Highest("ef", ("p_yes",), lambda one: (_known(one.p_yes),))
EB: Rule = Highest(
    "eb",
    ("regression_passes", "reproduction_passes"),
    lambda one: (_known(one.regression_passes), one.reproduction_passes or 0.0),
)
HYBRID: Rule = Hybrid()
SHORTEST: Rule = Highest(
    "shortest", ("steps", "patch_hash"), lambda one: (one.patch_hash != "", -_known(one.steps))
)
MAJORITY: Rule = Majority()
ORACLE: Rule = Highest("oracle", ("resolved",), lambda one: (_known(one.resolved),))

RULES: Mapping[str, Rule] = {rule.name: rule for rule in (EF, EB, HYBRID, SHORTEST, MAJORITY, ORACLE)}


def adapted(rules: Iterable[Rule], candidates: Iterable[Candidate]) -> list[Rule]:
    """Return the rules, without reproduction passes if no candidate of any task has them.

    Such candidates were scored by their repositories' tests alone. Where some have reproduction passes, the
    others lack a score.
    """
    if any(candidate.reproduction_passes is not None for candidate in candidates):
        return list(rules)
    return [_without_reproduction(rule) for rule in rules]


def _without_reproduction(rule: Rule) -> Rule:
    if not isinstance(rule, Highest | Hybrid):
        return rule
    return replace(rule, needs=tuple(name for name in rule.needs if name != "reproduction_passes"))


def named_rules(names: Iterable[str], *, hybrid: Rule = HYBRID) -> list[Rule]:
    """Return the rules with the given names; ``hybrid`` replaces the one of that name.

    Raises:
        ConfigError: there is no such rule.
    """
    known = {**RULES, HYBRID.name: hybrid}
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no rule {name!r}; the rules are {', '.join(known)}")
    return [known[name] for name in names]
