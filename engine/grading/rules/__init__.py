"""Grade rules: pure functions of a row and the evidence of one run of its tests.

To add one: a module with ``judge(row, evidence, config)`` and an entry in ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.config.rollout import GradingConfig
from engine.grading.evidence import Evidence, Judgement
from engine.grading.rules import exit_code, f2p_p2p, junit, map_equal, multi_swe, reward_file
from engine.types import GradeRule, TaskRow

Rule = Callable[[TaskRow, Evidence, GradingConfig], Judgement]

RULES: Mapping[GradeRule, Rule] = {
    GradeRule.F2P_P2P: f2p_p2p.judge,
    GradeRule.MAP_EQUAL: map_equal.judge,
    GradeRule.EXIT_CODE: exit_code.judge,
    GradeRule.JUNIT: junit.judge,
    GradeRule.MULTI_SWE: multi_swe.judge,
    GradeRule.REWARD_FILE: reward_file.judge,
}
