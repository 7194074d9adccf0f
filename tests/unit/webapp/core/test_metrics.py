"""Names and units of metrics on pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from webapp.core.contexts.charts import CHARTED
from webapp.core.contexts.metrics import FLOPS, MAX_UNNAMED, METRICS, SHARE, YES_OR_NO, by_subject, described
from webapp.templatetags.yard import in_unit

ENGINE = Path(__file__).resolve().parents[4] / "engine"
KEY = re.compile(r"[a-z_]+/[a-z0-9_]+")


def reported_keys() -> set[str]:
    """Return the metrics named in the engine, as regular expressions where a part is computed."""
    keys = set()
    for folder in ("orchestrator", "trainer", "inference"):
        for file in (ENGINE / folder).rglob("*.py"):
            tree = ast.parse(file.read_text())
            computed = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
            parts = {id(part) for node in computed for part in node.values}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                    keys |= {node.value} if KEY.fullmatch(node.value) else set()
            texts = [
                [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                for node in computed
            ]
            keys |= {
                "".join("[a-z0-9_]+" if text is None else re.escape(str(text)) for text in parts_of_text)
                for parts_of_text in texts
                if re.fullmatch(r"[a-z_]+/[a-z_]*", str(parts_of_text[0] if parts_of_text else ""))
            }
    return keys


def test_every_reported_metric_has_a_name_and_every_name_a_metric() -> None:
    reported = reported_keys()
    assert len(reported) > 100
    named = {*METRICS, "termination/submitted", "verdict/passed", "failure/pull"}
    assert {key for key in reported if not any(re.fullmatch(key, name) for name in named)} == set()
    assert {name for name in METRICS if not any(re.fullmatch(key, name) for key in reported)} == set()
    assert [key for key in CHARTED if described(key) is None] == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3_462_661_486.0, FLOPS, "3.46\u202fGFLOP/s"), (0.0, FLOPS, "0\u202fFLOP/s"),
        (0.125, SHARE, "12.5\u202f%"), (0.5, "share of grading time", "50.0\u202f% of grading time"),
        (245.0, "seconds", "4\u202fmin 05\u202fs"), (0.6214, "nats", "0.6214 nats"), (1.0, YES_OR_NO, "yes"),
        (12_800.4, "tokens/s", "12\u202f800 tokens/s"), (2.5, "US dollars", "$2.50"), (1e-6, "", "1e-06"),
        (float("nan"), "nats", "–"),
    ],
)  # fmt: skip
def test_metrics_are_written_with_their_unit(value: float, unit: str, text: str) -> None:
    assert in_unit(value, unit) == text


def test_metrics_are_grouped_by_subject_and_unknown_ones_bounded() -> None:
    metrics = {"update/flops_per_s": 1.0, "reward/mean": 0.5, "termination/max_steps": 0.25, "other/x": 2.0}
    shown = [(group.title, [m.metric.label for m in group.metrics]) for group in by_subject(metrics)]
    assert shown == [
        ("Reward", ["mean reward"]),
        ("Update", ["arithmetic"]),
        ("Endings of rollouts", ["step limit"]),
        ("Other", ["other/x"]),
    ]
    (other,) = by_subject({f"x/{number:04}": 1.0 for number in range(1_000)})
    assert (len(other.metrics), other.num_left_out) == (MAX_UNNAMED, 900)
