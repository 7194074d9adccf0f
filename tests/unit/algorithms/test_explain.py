"""``python -m engine.algorithms explain``: the same rules as the loss in torch, and clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from engine.algorithms.__main__ import main
from engine.algorithms.arithmetic import SampledTokens, token_terms
from engine.algorithms.explain import explain, parse_group
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.presets import PRESETS
from tests.unit.algorithms.objective_cases import (
    CONTEXT,
    REASONS,
    batches,
    configurations,
    members_of,
    product_loss,
    sampled_without_correction,
    weights_of,
)
from tests.unit.algorithms.objective_reference import Row

torch.set_num_threads(1)


def document_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows as input of explain, with observations between the sampled tokens."""
    trajectories = []
    for row in rows:
        mask = [1 if i % 2 else 0 for i in range(2 * len(row.tokens))]
        columns = {"logprobs": "new", "old_logprobs": "old", "sampler_logprobs": "sampler",
                   "reference_logprobs": "reference", "entropies": "entropy"}  # fmt: skip
        trajectories.append(
            {"reward": row.reward, "termination": REASONS[row.state].value, "mask": mask}
            | {
                name: [value for token in row.tokens for value in (7.0, getattr(token, attribute))]
                for name, attribute in columns.items()
            }
        )
    return {"max_tokens": CONTEXT, "trajectories": trajectories}


@settings(deadline=None, max_examples=60)
@given(batches(), configurations)
def test_explanation_equals_the_loss_in_torch(rows: list[Row], choice: dict[str, Any]) -> None:
    rows = [row._replace(length=2 * len(row.tokens)) for row in rows if row.group == 0]
    rows = sampled_without_correction(rows, choice)
    config = AlgorithmConfig(**choice)
    answer = explain(parse_group(document_of(rows)), config)
    parts, _, _ = product_loss(rows, config, torch.float64)
    members = members_of(rows, config)
    weights = weights_of(rows, members, config)
    assert answer["advantages"] == pytest.approx([member.advantage for member in members], rel=1e-12)
    assert answer["baselines"] == pytest.approx([member.baseline for member in members], rel=1e-12)
    assert answer["loss_masks"] == [int(member.loss_mask) for member in members]
    flat = [x for losses, w in zip(answer["token_losses"], weights, strict=True) if w for x in losses[1::2]]
    assert flat == pytest.approx(parts.token_losses.tolist(), rel=1e-12, abs=1e-12)
    assert answer["loss"] == pytest.approx(parts.loss.item(), rel=1e-12, abs=1e-12)
    for losses, weight in zip(answer["token_losses"], weights, strict=True):
        assert not any(losses[0::2])
        assert weight or not any(losses)


@settings(deadline=None, max_examples=60)
@given(batches(), configurations)
def test_slopes_of_tokens_equal_the_gradient_in_torch(rows: list[Row], choice: dict[str, Any]) -> None:
    rows = sampled_without_correction(rows, choice)
    config = AlgorithmConfig(**choice)
    _, gradients, _ = product_loss(rows, config, torch.float64)
    members = members_of(rows, config)
    for row, member, weight, expected in zip(
        rows, members, weights_of(rows, members, config), gradients, strict=True
    ):
        tokens = SampledTokens(
            logprobs=[token.new for token in row.tokens],
            old_logprobs=[token.old for token in row.tokens],
            sampler_logprobs=[token.sampler for token in row.tokens],
            reference_logprobs=[token.reference for token in row.tokens],
            entropies=[token.entropy for token in row.tokens],
        )
        terms = token_terms(tokens, member.advantage or 0.0, config) if weight else []
        slopes = [weight * term.slope for term in terms] or [0.0] * len(row.tokens)
        assert slopes == pytest.approx(expected, rel=1e-12, abs=1e-12)


def trajectory(reward: float | None, termination: str = "submitted", **columns: Any) -> dict[str, Any]:
    return {
        "reward": reward,
        "termination": termination,
        "logprobs": [0.0, -1.0, -0.5],
        "old_logprobs": [0.0, -1.2, -0.9],
        "mask": [0, 1, 1],
        **columns,
    }


GROUP = {
    "max_tokens": 8,
    "trajectories": [
        trajectory(1.0), trajectory(0.0), trajectory(1.0, "max_steps"), trajectory(None, "env_error"),
    ],
}  # fmt: skip


def test_explain_prints_advantages_and_loss(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(json.dumps(GROUP))
    assert main(["explain", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    answer = json.loads(printed.out)
    assert set(answer) == {"advantages", "baselines", "loss_masks", "token_losses", "loss"}
    assert answer["advantages"] == [1.0, -1.0, None, None]
    assert answer["baselines"] == [0.0, 1.0, None, None]
    assert answer["loss_masks"] == [1, 1, 0, 0]
    rho = [2.718281828459045**0.2, 2.718281828459045**0.4]
    expected = [[0.0, -rho[0], -1.28], [0.0, *rho], [0.0] * 3, [0.0] * 3]
    for losses, wanted in zip(answer["token_losses"], expected, strict=True):
        assert losses == pytest.approx(wanted)
    # Filtered trajectories count in the denominator, infrastructure's do not: 8 tokens × 3 trajectories.
    assert answer["loss"] == pytest.approx((rho[1] - 1.28) / (8 * 3))


def test_settings_and_presets_are_applied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "group.json"
    path.write_text(json.dumps(GROUP))

    def answer(*arguments: str) -> dict[str, Any]:
        assert main(["explain", str(path), *arguments]) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    assert answer("--preset", "dr_grpo")["advantages"] == pytest.approx([1 / 3, -2 / 3, 1 / 3, None])
    assert answer("--set", "filtered_baseline=keep_zero")["advantages"] == [1.0, -0.5, -0.5, None]
    assert answer("--set", "algorithm.filtered_reasons=[]")["loss_masks"] == [1, 1, 1, 0]
    assert answer("--preset", "dr_grpo", "--set", "clip_high=0.5")["token_losses"][0][2] == pytest.approx(
        -(2.718281828459045**0.4) / 3
    )


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_explains_a_plain_group(
    preset: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Terms without their columns are left out, with a message."""
    path = tmp_path / "group.json"
    path.write_text(json.dumps(GROUP))
    assert main(["explain", str(path), "--preset", preset]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["advantages"]) == 4
    assert ("left out" in printed.err) == (PRESETS[preset]["kl"] != "none")


def with_trajectories(*trajectories: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": 8, "trajectories": list(trajectories)}


TOO_SHORT = "trajectories.0: the arrays differ in length (mask 2, logprobs 3, old_logprobs 3)"
BAD_GROUPS: list[tuple[Any, str]] = [
    ("{", "is not JSON"),
    ({"trajectories": []}, "max_tokens: missing field"),
    ({"max_tokens": 0, "trajectories": []}, "max_tokens: Input should be greater than or equal to 1"),
    (with_trajectories(trajectory(1.0, mask=[0, 1])), TOO_SHORT),
    (with_trajectories(trajectory(1.0, mask=[0, 1, 2])), "trajectories.0.mask.2: Input should be 0 or 1"),
    (
        with_trajectories(trajectory(1.0, logprobs=[0, float("nan"), 0])),
        "trajectories.0.logprobs.1: Input should be a finite number",
    ),
    (
        with_trajectories(trajectory(1.0, logprobs=[0, 900, 0]), trajectory(0.0)),
        "trajectories.0: a ratio of its log-probabilities is too large",
    ),
]
BAD_SETTINGS = [
    (("--set", "clip_hihg=0.3"), "clip_hihg: unknown setting"),
    (("--set", "clip_high"), "--set clip_high: expected KEY=VALUE"),
    (("--preset", "ppo"), "preset: Input should be 'grpo', 'dr_grpo'"),
]


@pytest.mark.parametrize(
    ("group", "arguments", "message"),
    [
        *((group, (), message) for group, message in BAD_GROUPS),
        *((GROUP, arguments, message) for arguments, message in BAD_SETTINGS),
    ],
)
def test_bad_input_is_refused_with_a_reason(
    group: Any, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "group.json"
    path.write_text(group if isinstance(group, str) else json.dumps(group))
    assert main(["explain", str(path), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_groups_without_trajectories_or_tokens_have_a_loss_of_zero() -> None:
    assert explain(parse_group({"max_tokens": 4, "trajectories": []}), AlgorithmConfig())["loss"] == 0.0
    bare = trajectory(1.0, logprobs=[], old_logprobs=[], mask=[])
    answer = explain(
        parse_group({"max_tokens": 4, "trajectories": [bare, bare]}), AlgorithmConfig(preset="gspo")
    )
    assert (answer["loss"], answer["token_losses"]) == (0.0, [[], []])


def test_explain_never_loads_torch() -> None:
    script = (
        "import sys, engine.algorithms, engine.algorithms.__main__, engine.algorithms.explain;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=240).returncode == 0
