"""Expected outcome of selecting from K rollouts, over all subsets of n: exact, by counting.

Equal candidates form a class, given by its size and its number of resolved members. A subset draws the
members of a class with equal probability, and selection cannot distinguish them: the winning class counts
with its share of resolved members, whichever were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import comb

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray

_MANTISSA_BITS = 64


@dataclass(frozen=True, slots=True, order=True)
class Class:
    """Candidates that selection cannot distinguish."""

    size: int
    num_resolved: int

    @property
    def share(self) -> float:
        """Return the share of resolved candidates."""
        return self.num_resolved / self.size


def best_of_ordered(classes: Sequence[Class], k: int) -> float:
    """Return the probability that the first class of K drawn candidates yields a resolved one.

    Order statistics: the class at the places i … j − 1 of the n ordered candidates is the first of
    C(n − i, K) − C(n − j, K) subsets.

    Args:
        classes: best first.
        k: candidates drawn, 1 … n.
    """
    remaining = sum(group.size for group in classes)
    subsets = unsettled = comb(remaining, k)
    probability = 0.0
    for group in classes:
        remaining -= group.size
        without = comb(remaining, k)
        probability += (unsettled - without) / subsets * group.share
        unsettled = without
        if not unsettled:
            break
    return probability


def best_of_filtered(places: Sequence[int], classes: Sequence[Class], k: int, keep: int) -> float:
    """Return the probability of a resolved candidate when a filter and then another order select.

    Of K drawn candidates the first ``keep`` in the filter's order stay; of these the first in the final order
    is selected.

    Args:
        places: place of each candidate in the final order, in the filter's order (a permutation).
        classes: class of each candidate, in the filter's order.
        k: candidates drawn, 1 … n.
        keep: candidates that stay, 1 … K.
    """
    wins = (_num_wins(position, places, k, keep) for position in range(len(places)))
    subsets = comb(len(places), k)
    return sum(number / subsets * group.share for number, group in zip(wins, classes, strict=True))


def _num_wins(position: int, places: Sequence[int], k: int, keep: int) -> int:
    """Count the subsets of K from which the candidate at ``position`` is selected.

    All other kept candidates must be behind it in the final order. Sums over the last kept candidate: the
    ``keep`` − 2 others are drawn from those before it, the K − ``keep`` filtered ones from those after it.
    """
    n, place = len(places), places[position]
    beaten = sum(other > place for other in places[:position])
    wins = comb(beaten, keep - 1) * comb(n - position - 1, k - keep)
    if keep == 1:
        return wins
    for last in range(position + 1, n):
        if places[last] > place:
            wins += comb(beaten, keep - 2) * comb(n - last - 1, k - keep)
            beaten += 1
    return wins


def most_frequent(classes: Sequence[Class], blank: Class, ks: Sequence[int]) -> list[float]:
    """Return, for each K, the probability that the most frequent class drawn yields a resolved candidate.

    Equally frequent classes are selected with equal probability. Results are cached: the order of the classes
    does not matter, and many tasks have the same ones.

    Args:
        classes: the classes that compete.
        blank: the class that is selected only if nothing else was drawn; its size may be 0.
        ks: numbers of candidates drawn, each 1 … n.
    """
    return list(_most_frequent(tuple(sorted(classes)), blank, tuple(ks)))


@lru_cache(maxsize=8192)
def _most_frequent(classes: tuple[Class, ...], blank: Class, ks: tuple[int, ...]) -> tuple[float, ...]:
    most = max(ks)
    nodes, weights = leggauss(max(1, (len(classes) + 1) // 2))
    unions = _Union.built(classes, most)
    shares = np.zeros(most + 1)
    for top in range(1, min(max((group.size for group in classes), default=0), most) + 1):
        shares += weights / 2 @ _top_shares(unions, top, most, (nodes + 1) / 2)
    with_blank = _Union(sum(group.size for group in classes), blank, most)
    probabilities = []
    for k in ks:
        wins = sum(float(with_blank.odds(drawn)[k - drawn] * shares[k - drawn]) for drawn in range(k + 1))
        wins += float(with_blank.odds(k)[0]) * blank.share if blank.size else 0.0
        probabilities.append(min(1.0, wins))
    return tuple(probabilities)


class _Union:
    """Candidates of some classes and of one additional class.

    Args:
        size: number of candidates before.
        one: the class that is added.
        most: maximum number of candidates drawn.
    """

    def __init__(self, size: int, one: Class, most: int) -> None:
        self.one = one
        self._before = _Ways(size, most)
        self._added = _Ways(one.size, most)
        self._all = _Ways(size + one.size, most)
        self._all.mantissas[self._all.mantissas == 0] = np.inf  # impossible draws have odds 0

    @classmethod
    def built(cls, classes: Sequence[Class], most: int) -> list[_Union]:
        """Return the unions that add one class after the other."""
        sizes = accumulate((group.size for group in classes), initial=0)
        return [cls(size, group, most) for size, group in zip(sizes, classes, strict=False)]

    def odds(self, times: int) -> NDArray[np.float64]:
        """Return the odds that 0 … ``most`` − ``times`` others are drawn beside ``times`` of the class.

        Hypergeometric, with the sum of both as the number drawn.
        """
        before, added, both = self._before, self._added, self._all
        drawn = slice(0, len(both.mantissas) - times)
        mantissas = before.mantissas[drawn] * added.mantissas[times] / both.mantissas[times:]
        exponents = before.exponents[drawn] + added.exponents[times] - both.exponents[times:]
        odds: NDArray[np.float64] = np.ldexp(mantissas, exponents)
        return odds


class _Ways:
    """C(size, d) for d = 0 … ``most``, as mantissas and exponents: from size 1,030 on it exceeds a float."""

    def __init__(self, size: int, most: int) -> None:
        self.mantissas = np.zeros(most + 1)
        self.exponents = np.zeros(most + 1, dtype=np.int32)
        ways = 1
        for drawn in range(min(size, most) + 1):
            shift = max(0, ways.bit_length() - _MANTISSA_BITS)
            self.mantissas[drawn], self.exponents[drawn] = float(ways >> shift), shift
            ways = ways * (size - drawn) // (drawn + 1)


def _top_shares(
    unions: Sequence[_Union], top: int, most: int, nodes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add up the shares of the classes that occur ``top`` times, over the draws in which none occurs more.

    Of ``tied`` such classes each is selected with probability 1 / tied = ∫ x^(tied − 1) dx over 0 … 1: every
    other one adds a factor x. The polynomials' degree is below the number of classes, so Gauss–Legendre
    quadrature at half as many nodes is exact. All terms are positive, so nothing cancels.

    Returns:
        (nodes, most + 1): the expected sum at each node x, for 0 … ``most`` candidates drawn.
    """
    draws = np.zeros((len(nodes), most + 1))
    draws[:, 0] = 1.0
    shares = np.zeros_like(draws)
    for union in unions:
        extended_draws, extended_shares = np.zeros_like(draws), np.zeros_like(draws)
        for times in range(min(union.one.size, top) + 1):
            odds, before = union.odds(times), slice(0, most + 1 - times)
            factor = nodes[:, None] * odds if times == top else odds
            extended_draws[:, times:] += factor * draws[:, before]
            extended_shares[:, times:] += factor * shares[:, before]
            if times == top:
                extended_shares[:, times:] += odds * union.one.share * draws[:, before]
        draws, shares = extended_draws, extended_shares
    return shares
