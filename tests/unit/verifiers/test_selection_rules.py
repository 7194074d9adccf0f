"""Selection rules: examples by hand, and Best@K compared with all subsets."""

from __future__ import annotations

import random
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, DatasetError, MissingScoreError
from engine.evaluation.metrics import pass_at_k
from engine.verifiers.selection.candidates import Candidate
from engine.verifiers.selection.rules import (
    EB,
    EF,
    HYBRID,
    MAJORITY,
    ORACLE,
    RULES,
    SHORTEST,
    Hybrid,
    Rule,
    adapted,
    pick,
)
from tests.unit.verifiers.brute_force import best_at_k

ALL_RULES = [*RULES.values(), Hybrid(minimum=3), Hybrid(keep=1), Hybrid(keep=3), Hybrid(keep=100)]


def candidate(name: str, **fields: object) -> Candidate:
    defaults = {
        "resolved": False,
        "p_yes": 0.5,
        "regression_passes": 1,
        "reproduction_passes": 1,
        "steps": 5,
        "tokens": 100,
        "patch_hash": name,
    }
    return Candidate(task_id="t", trajectory_id=name, **{**defaults, **fields})  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn) -> list[Candidate]:
    """Draw up to seven candidates; few distinct scores, so that ties are frequent."""
    rows = draw(
        st.lists(
            st.tuples(
                st.booleans(),
                st.sampled_from([0.1, 0.5, 0.9]),
                st.integers(0, 2),
                st.integers(0, 1),
                st.integers(1, 3),
                st.sampled_from(["", "a", "b", "c"]),
            ),
            min_size=1,
            max_size=7,
        )
    )
    return [
        candidate(
            str(index),
            resolved=resolved,
            p_yes=p_yes,
            regression_passes=regression,
            reproduction_passes=reproduction,
            steps=steps,
            patch_hash=patch,
        )
        for index, (resolved, p_yes, regression, reproduction, steps, patch) in enumerate(rows)
    ]


def _rule_id(rule: Rule) -> str:
    settings = [f"{name} {getattr(rule, name)}" for name in ("keep", "minimum") if hasattr(rule, name)]
    return " ".join([rule.name, *settings])


@pytest.mark.parametrize("rule", ALL_RULES, ids=_rule_id)
@settings(max_examples=50)
@given(candidates=tables(), seed=st.randoms(use_true_random=False))
def test_best_at_k_is_the_mean_over_every_subset_in_any_order(
    rule: Rule, candidates: list[Candidate], seed: random.Random
) -> None:
    ks = range(1, len(candidates) + 1)
    by_definition = pytest.approx([best_at_k(rule, candidates, k) for k in ks], abs=1e-12)
    shuffled = list(candidates)
    seed.shuffle(shuffled)
    assert rule.expected(candidates, ks) == by_definition
    assert rule.expected(shuffled, ks) == by_definition
    assert pick(rule, shuffled) == pick(rule, candidates)


@given(candidates=tables())
def test_the_oracle_equals_the_unbiased_pass_at_k(candidates: list[Candidate]) -> None:
    solved = sum(rollout.resolved is True for rollout in candidates)
    ks = range(1, len(candidates) + 1)
    unbiased = [pass_at_k(len(candidates), solved, k) for k in ks]
    assert ORACLE.expected(candidates, ks) == pytest.approx(unbiased, abs=1e-12)


def test_ef_selects_the_highest_probability_and_averages_ties() -> None:
    table = [candidate("a", p_yes=0.9), candidate("b", p_yes=0.9, resolved=True), candidate("c", p_yes=0.1)]
    assert [rollout.trajectory_id for rollout in EF.best(table)] == ["a", "b"]
    assert pick(EF, table).trajectory_id == "a"
    assert EF.expected(table, [3]) == [0.5]


def test_eb_compares_regression_tests_first_and_ignores_the_probability() -> None:
    table = [
        candidate("a", regression_passes=9, reproduction_passes=4, p_yes=1.0),
        candidate("b", regression_passes=10, reproduction_passes=1, p_yes=0.0),
        candidate("c", regression_passes=10, reproduction_passes=2, p_yes=0.0),
    ]
    assert pick(EB, table).trajectory_id == "c"


def test_hybrid_keeps_the_top_half_before_it_compares_tests() -> None:
    table = [
        candidate("a", p_yes=0.9, regression_passes=1),
        candidate("b", p_yes=0.8, regression_passes=2),
        candidate("c", p_yes=0.2, regression_passes=3),
        candidate("d", p_yes=0.1, regression_passes=4),
    ]
    assert pick(HYBRID, table).trajectory_id == "b"
    assert pick(Hybrid(minimum=3), table).trajectory_id == "c"
    assert pick(Hybrid(keep=1), table).trajectory_id == "a"
    assert pick(Hybrid(keep=9), table).trajectory_id == "d"
    assert pick(HYBRID, table[:3]).trajectory_id == "a", "half of three is one"


def test_hybrid_breaks_ties_of_tests_by_the_probability() -> None:
    table = [candidate("a", p_yes=0.6), candidate("b", p_yes=0.7), candidate("c", p_yes=0.1)]
    assert pick(Hybrid(keep=3), table).trajectory_id == "b"


def test_shortest_skips_empty_patches_if_there_are_others() -> None:
    table = [candidate("a", steps=1, patch_hash=""), candidate("b", steps=4), candidate("c", steps=3)]
    assert pick(SHORTEST, table).trajectory_id == "c"
    assert pick(SHORTEST, table[:1]).trajectory_id == "a"


def test_majority_handles_more_subsets_than_a_float_can_count() -> None:
    """C(1200, 600) is about 1e360; of two equally frequent patches one is right."""
    patches = [
        candidate(str(number), resolved=number % 2 == 0, patch_hash="ab"[number % 2]) for number in range(40)
    ]
    blanks = [candidate(f"blank {number}", patch_hash="", resolved=True) for number in range(1160)]
    ks = [1, 2, 600, 1199, 1200]
    rates = MAJORITY.expected([*patches, *blanks], ks)
    assert rates == pytest.approx([1 / 2 + comb(1160, k) / comb(1200, k) / 2 for k in ks], rel=1e-10)


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (EF, "p_yes"),
        (EB, "regression_passes"),
        (EB, "reproduction_passes"),
        (HYBRID, "p_yes"),
        (SHORTEST, "steps"),
        (MAJORITY, "patch_hash"),
        (ORACLE, "resolved"),
    ],
)
def test_a_missing_score_is_an_error_never_a_zero(rule: Rule, field: str) -> None:
    table = [candidate("a"), candidate("b", **{field: None})]
    with pytest.raises(
        MissingScoreError, match=f"1 of 2 rollouts have no {field}, such as trajectory b"
    ) as caught:
        pick(rule, table)
    assert (caught.value.field, caught.value.num_missing) == (field, 1)
    with pytest.raises(MissingScoreError):
        rule.expected(table, [1])


@pytest.mark.parametrize("rule", [EB, HYBRID])
def test_regression_passes_decide_without_reproduction_tests(rule: Rule) -> None:
    table = [
        candidate("a", regression_passes=2, reproduction_passes=None, resolved=True),
        candidate("b", regression_passes=1, reproduction_passes=None),
    ]
    (alone,) = adapted([rule], table)
    assert pick(alone, table).trajectory_id == "a"
    assert alone.expected(table, [2]) == [1.0]
    some = [*table, candidate("c")]
    (same,) = adapted([rule], some)
    with pytest.raises(MissingScoreError, match="2 of 3 rollouts have no reproduction_passes"):
        pick(same, some)


def test_an_ungraded_rollout_can_be_selected_but_not_counted() -> None:
    table = [candidate("a", resolved=None, p_yes=0.9), candidate("b")]
    assert pick(EF, table).trajectory_id == "a"
    with pytest.raises(MissingScoreError, match="resolved"):
        EF.expected(table, [1])


@pytest.mark.parametrize("k", [0, -1, 3])
def test_k_outside_the_number_of_rollouts_is_refused(k: int) -> None:
    for rule in ALL_RULES:
        with pytest.raises(ConfigError, match=f"K = {k} with 2 rollouts"):
            rule.expected([candidate("a"), candidate("b")], [k])


@pytest.mark.parametrize("p_yes", [float("nan"), float("inf"), -0.1, 1.1])
def test_impossible_probabilities_are_refused(p_yes: float) -> None:
    with pytest.raises(DatasetError, match="p_yes"):
        candidate("a", p_yes=p_yes)
