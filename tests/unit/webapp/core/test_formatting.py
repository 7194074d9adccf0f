"""Formatting of numbers, chips, patches, texts and controls on pages."""

from __future__ import annotations

import pytest

from engine.evaluation.comparison import PairedChange
from engine.evaluation.endings import Endings
from engine.patches.structure import FileChange, parse_patch
from webapp.evaluations.contexts.evaluations import evaluation_plot
from webapp.models import Evaluation
from webapp.rollouts.contexts import diffs
from webapp.rollouts.contexts.diffs import edit_diff, patch_diff
from webapp.rollouts.contexts.steps import cut_text
from webapp.runs.contexts.header import controls_of, waiting_for
from webapp.runs.contexts.phase import Phase
from webapp.runs.contexts.solve_map import level_of
from webapp.templatetags import yard


def test_unknown_numbers_are_shown_as_a_dash() -> None:
    for write in (yard.number, yard.signed, yard.fixed, yard.percent, yard.points, yard.seconds, yard.clock):
        assert write(None) == "–"
    assert yard.sparkline([None, 1.0]) == '<span class="muted">–</span>'


def test_chips_escape_their_text() -> None:
    assert "<script>" not in yard.chip("<script>alert(1)</script>")
    assert "<script>" not in yard.mask_chip(False, "<script>", None)
    assert "<b>" not in yard.stacked_bar([("<b>", "x", 1.0)])
    assert yard.prose("a ``<b>`` c") == "a <code>&lt;b&gt;</code> c"


def test_patch_lines_are_counted_highlighted_and_escaped() -> None:
    diff = patch_diff("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = '<script>'\n+b = 1\n")
    assert diff is not None
    assert [line.css for line in diff.lines] == ["gh", "gh", "gu", "gd", "gi"]
    assert (diff.num_added, diff.num_removed, diff.num_files, diff.cut) == (1, 1, 1, False)
    assert "<script>" not in "".join(line.html for line in diff.lines)
    assert 'class="mi"' in diff.lines[4].html


def test_only_hunk_lines_count_as_added_or_removed() -> None:
    patch = (
        'diff --git "a/q\\"x.sql" "b/q\\"x.sql"\nindex 1111111..2222222 100644\n'
        '--- "a/q\\"x.sql"\n+++ "b/q\\"x.sql"\n'
        "@@ -1,3 +1,2 @@ f()\n--- a/old\n-+++ b/old\n++++ b/new\n \n\\ No newline at end of file\n"
        "diff --git a/p.py b/q.py\nrename from p.py\nrename to q.py\n"
    )
    diff = patch_diff(patch)
    assert diff is not None
    expected = ["gh"] * 4 + ["gu", "gd", "gd", "gi", "", ""] + ["gh"] * 3
    assert [line.css for line in diff.lines] == expected
    assert (diff.num_added, diff.num_removed, diff.num_files) == (1, 2, 2)
    assert len(diff.lines) == diff.num_lines == patch.count("\n")


def test_long_patch_is_parsed_only_as_far_as_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    hunk = "@@ -1,2 +1,3 @@ f()\n a\n-b\n+++ c\n+d\n"
    files = [f"diff --git a/{name}.py b/{name}.py\n--- a/{name}.py\n+++ b/{name}.py\n{hunk}" for name in "ab"]
    long = "@@ -0,0 +1,30000 @@\n" + "+new\n" * 30_000
    patch = f"{files[0]}{files[1]}--- /dev/null\n+++ b/c.py\n{long}"
    parsed: list[int] = []

    def parse(text: str) -> list[FileChange]:
        parsed.append(text.count("\n"))
        return parse_patch(text)

    monkeypatch.setattr(diffs, "parse_patch", parse)
    css = [*2 * ["gh", "gh", "gh", "gu", "", "gd", "gi", "gi"], "gh", "gh", "gu", *["gi"] * 30_000]
    for limit in (9, 13, 14, 18, 500):
        diff = patch_diff(patch, limit)
        assert diff is not None
        assert diff.num_lines == patch.count("\n")
        assert diff.num_removed == 2
        assert [line.css for line in diff.lines] == css[:limit]
    assert parsed == [9, 13, 14, 18, 500]


def test_edit_is_shown_as_a_line_diff() -> None:
    diff = edit_diff("a\nb\nc", "a\nB\nc", "x.txt")
    assert [(line.sign, str(line.html)) for line in diff.lines] == [
        (" ", "a"),
        ("-", "b"),
        ("+", "B"),
        (" ", "c"),
    ]


def test_text_is_cut_by_lines_and_by_characters() -> None:
    whole = cut_text("a\nb")
    assert (whole.text, whole.shown_lines, whole.num_lines, whole.cut) == ("a\nb", 2, 2, False)
    lines = cut_text("x\n" * 300)
    assert (lines.shown_lines, lines.num_lines, lines.cut) == (200, 301, True)
    wide = cut_text("x" * 200_000)
    assert (len(wide.text), wide.num_chars, wide.cut) == (20_000, 200_000, True)
    assert cut_text("").num_lines == 0


def test_solve_level_depends_on_solved_graded_and_cut_short_rollouts() -> None:
    assert [level_of(s, 8) for s in (0, 1, 4, 7, 8)] == [0, 1, 2, 3, 4]
    assert level_of(0, 0) == -1
    assert level_of(0, 8, 8) == -1, "time limits ended all"
    assert level_of(0, 8, 7) == 0


def test_controls_depend_on_current_and_desired_state() -> None:
    assert [c.action for c in controls_of("draft", "run")] == ["start"]
    assert [c.action for c in controls_of("running", "run")] == ["pause", "stop"]
    assert [c.action for c in controls_of("running", "pause")] == ["resume", "stop"]
    assert [c.action for c in controls_of("paused", "pause")] == ["resume", "stop"]
    assert [c.action for c in controls_of("failed", "run")] == ["resume"]
    assert controls_of("succeeded", "run") == ()
    assert "pause requested" in waiting_for("running", "pause")
    assert waiting_for("paused", "pause") == ""
    assert "stop requested" in waiting_for("stopping", "stop")


def test_evaluations_are_compared_with_the_first_of_their_name() -> None:
    def made(name: str, iteration: int, rate: float) -> Evaluation:
        return Evaluation(
            name=name, iteration=iteration, solve_rate=rate, interval_low=rate, interval_high=rate
        )

    rows = [made("heldout", 0, 0.25), made("heldout", 5, 0.5), made("train", 0, 0.75)]
    for number, row in enumerate(rows, start=1):
        row.pk = number
    change = PairedChange(difference=0.25, p_value=0.01)
    plots = evaluation_plot([*rows[:2], made("heldout", 9, 1.0), rows[2]], {2: change})
    assert [(plot.name, plot.change) for plot in plots] == [("heldout", change), ("train", None)]
    assert plots[0].last.at == "50.00", "a partial evaluation is not the newest result"
    assert [label for label, _ in plots[0].shown] == ["before", "newest", ""]
    assert [label for label, _ in plots[1].shown] == [""]


def test_endings_warn_of_rollouts_ended_by_a_time_limit() -> None:
    endings = Endings.of({"submitted": 11, "rollout_timeout": 245}, excluded=3)
    html = yard.show_endings(endings)
    assert "245 of 256 were ended by a time limit" in html
    assert "submitted\u202f11 · rollout time limit\u202f245 · excluded\u202f3" in html
    assert "warning" not in yard.show_endings(Endings.of({"submitted": 1, "max_steps": 2}, excluded=0))
    assert yard.show_endings(None) == ""


def test_a_phase_keeps_the_commas_of_its_message() -> None:
    phase = Phase(
        now="rollouts (12 running, 30 steps)", done=1000, total=12_800, follows="", seconds_left=None
    )
    assert str(phase) == "rollouts (12 running, 30 steps) 1\u202f000 of 12\u202f800"
