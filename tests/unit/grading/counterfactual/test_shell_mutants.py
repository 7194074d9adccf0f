"""Other expected values in shell scripts and in the files beside them, and what is left alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.grading.counterfactual.base import MutantKind, apply_mutants
from engine.grading.counterfactual.languages import mutator_of

BESIDE = {
    "/tests/expected.txt": b"first 1\n\nlast 2\n",
    "/tests/data/words.txt": b"hello world\n",
    "/tests/check.py": b"print(3)\n",
}
PATH = "/tests/test.sh"


def changed(script: str) -> list[tuple[str, str]]:
    """Return path and changed text of each mutant of a script."""
    mutator = mutator_of(PATH)
    assert mutator is not None
    found = mutator.mutants(script.encode(), PATH, None, {PATH: script.encode(), **BESIDE})
    assert all(one.kind is MutantKind.VALUE and one.before for one in found)
    return [(one.path, one.after) for one in found]


IN_SCRIPT = [
    ('if [ "$(p)" = "42" ]; then echo 1 > /r; else echo 0 > /r; fi\n', '"$(p)" = "43"'),
    ('got=$(p)\nif [[ $got == \'v1\' ]]; then echo 1 > /r; else exit 1; fi\n', "$got == 'v2'"),
    ('test "$(p)" -eq 9 && echo 1 > /r || echo 0 > /r\n', 'test "$(p)" -eq 8'),
    ('echo 1 > /r\nif [ "$(p)" != abc ]; then echo 0 > /r; fi\n', '"$(p)" != abd'),
    ('[ "$(p)" != "5" ] && exit 1\necho 1 > /r\n', '"$(p)" != "6"'),
    ('[ "$(p)" = "5" ] || { echo "no" >&2; exit 1; }\necho 1 > /r\n', '"$(p)" = "6"'),
    ('fail() { echo "$1"; echo 0 > /r; exit 0; }\n[ "$(p)" = 5 ] || fail no\necho 1 > /r\n', '"$(p)" = 6'),
    ('done_with() { echo "$1" > /r; exit 0; }\n[ "$(p)" = 5 ] || done_with 0\ndone_with 1\n', '"$(p)" = 6'),
    ('if ! [ "$(p)" = 5 ]; then exit 2; fi\nexit 0\n', '"$(p)" = 6'),
    ('if [ -f out ]; then\n  if [ "$(p)" = 5 ]; then exit 0; fi\nfi\nexit 1\n', '"$(p)" = 6'),
    ('if [ -s out ] && [[ "$(p)" == 5 && -n "$x" ]]; then exit 0; else exit 1; fi\n', '"$(p)" == 6'),
    ('set -e\n[ "$(p)" = 5 ]\necho 1 > /r\n', '"$(p)" = 6'),
    ('[ "$(p)" = 5 ]\n', '"$(p)" = 6'),
    ('WANTED="5"\n[ "$(p)" = "$WANTED" ] || exit 1\necho 1 > /r\n', 'WANTED="6"'),
    ('ok=1\n[ "$(p)" = 5 ] || ok=0\n[ "$ok" = 1 ] && echo 1 > /r || echo 0 > /r\n', '"$(p)" = 6'),
    ('bad=0\n[ "$(p)" = 5 ] || bad=$((bad + 1))\nq=$(p)\nif [ $bad -eq 0 ]; then exit 0; fi\nexit 1\n',
     '"$(p)" = 6'),
    ('code=0\nmiss() { echo "$1"; code=1; }\n[ "$(p)" = 5 ] || miss it\nexit $code\n', '"$(p)" = 6'),
    ('ok=true\nif [ "$(p)" != 5 ]; then\n  ok=false\nfi\nif [ "$ok" = true ]; then echo 1 > /r; fi\n',
     '"$(p)" != 6'),
    ('grep -q "total words" out || exit 1\necho 1 > /r\n', 'grep -q "totam words" out'),
]  # fmt: skip


@pytest.mark.parametrize(("script", "after"), IN_SCRIPT)
def test_constants_that_decide_have_other_values(script: str, after: str) -> None:
    assert changed(script) == [(PATH, after)]


@pytest.mark.parametrize(
    "script",
    [
        "diff -q out /tests/expected.txt || exit 1\necho 1 > /r\n",
        "set -euo pipefail\np | diff - /tests/expected.txt\necho 1 > /r\n",
        'cmp -s "$(dirname "$0")/expected.txt" out && echo 1 > /r || echo 0 > /r\n',
        "diff <(sort out) <(sort /tests/expected.txt) > /dev/null || exit 1\necho 1 > /r\n",
        '[ "$(p)" = "$(cat /tests/expected.txt)" ] || exit 1\necho 1 > /r\n',
        'WANTED=$(< /tests/expected.txt)\n[ "$(p)" = "$WANTED" ] || exit 1\necho 1 > /r\n',
        "if ! diff out /tests/expected.txt; then\n  cat /tests/expected.txt\n  echo 0 > /r; exit 0\nfi\n"
        "echo 1 > /r\n",
    ],
)
def test_files_beside_that_are_compared_have_other_lines(script: str) -> None:
    assert changed(script) == [("/tests/expected.txt", "last 3"), ("/tests/expected.txt", "first 2")]


@pytest.mark.parametrize(
    "script",
    [
        # Another way to the reward, before or after.
        'if [ "$(p)" = 4 ]; then exit 0; elif [ "$(p)" = 5 ]; then exit 0; fi\nexit 1\n',
        '[ "$(p)" = 4 ] || [ "$(p)" = 5 ] || exit 1\necho 1 > /r\n',
        '[ "$(p)" = 4 -o "$(p)" = 5 ] || exit 1\necho 1 > /r\n',
        'if p; then echo 1 > /r; exit 0; fi\n[ "$(p)" = 5 ] || exit 1\necho 1 > /r\n',
        'echo 1 > /r\nif [ "$(p)" = 5 ]; then echo 1 > /r; fi\n',
        # Not every passing run comes here, or nothing ends when it fails.
        'if q; then [ "$(p)" = 5 ] || exit 1; fi\necho 1 > /r\n',
        'for n in 1 2; do [ "$(p)" = 5 ] || exit 1; done\necho 1 > /r\n',
        '[ "$(p)" = 5 ] || bad=$((bad + 1))\n[ "$bad" -lt 2 ] && echo 1 > /r\n',
        'ok=0\n[ "$(p)" = 5 ] && ok=1\n[ "$(p)" = 6 ] && ok=1\n[ $ok = 1 ] && echo 1 > /r\n',
        'ok=1\n[ "$(p)" = 5 ] || ok=0\nq && ok=1\n[ $ok = 1 ] && echo 1 > /r\n',
        'ok=1\n[ "$(p)" = 5 ] || ok=0\nread -r ok < out\n[ $ok = 1 ] && echo 1 > /r\n',
        'bad=0\n[ "$(p)" = 5 ] || bad=$((bad + 1))\n[ $bad -lt 2 ] && echo 1 > /r\n',
        'good=0\n[ "$(p)" = 5 ] && good=$((good + 1))\n[ $good -ge 1 ] && echo 1 > /r\n',
        '[ "$(p)" = 5 ]\necho 1 > /r\n',
        'set -e\n[ "$(p)" = 5 ] && q\necho 1 > /r\n',
        'set -e\nset +e\n[ "$(p)" = 5 ]\necho 1 > /r\n',
        '[ "$(p)" = 5 ] || exit "$code"\necho 1 > /r\n',
        # What differs does not decide.
        '[ "$(p)" = bad ] && exit 1\necho 1 > /r\n',
        '[ "$(p)" != bad ] || exit 1\necho 1 > /r\n',
        '[[ "$(p)" == v1* ]] || exit 1\necho 1 > /r\n',
        'grep -q "a.*b" out || exit 1\necho 1 > /r\n',
        'grep -q 42 out || exit 1\necho 1 > /r\n',
        "diff -I first out /tests/expected.txt || exit 1\necho 1 > /r\n",
        'p\n[ $? -eq 0 ] || exit 1\necho 1 > /r\n',
        'mode=fast\n[ "$mode" = fast ] || exit 1\necho 1 > /r\n',
        # The expected value is given to the program, too.
        'WANTED=5\np "$WANTED" > out\n[ "$(cat out)" = "$WANTED" ] || exit 1\necho 1 > /r\n',
        "p < /tests/expected.txt > out\ndiff out /tests/expected.txt || exit 1\necho 1 > /r\n",
        "cat /tests/expected.txt | p > out\ndiff out /tests/expected.txt || exit 1\necho 1 > /r\n",
        # Commands may mean something else.
        'diff() { true; }\ndiff out /tests/expected.txt || exit 1\necho 1 > /r\n',
        'trap "echo 1 > /r" EXIT\n[ "$(p)" = 5 ] || exit 1\n',
        '. ./settings\n[ "$(p)" = 5 ] || exit 1\necho 1 > /r\n',
        'if [ "$(p)" = 5 ]; then\n',
    ],
)  # fmt: skip
def test_what_may_not_decide_is_left_alone(script: str) -> None:
    assert changed(script) == []


def test_files_that_others_name_are_left_alone() -> None:
    script = "diff out /tests/expected.txt || exit 1\necho 1 > /r\n"
    beside = {**BESIDE, "/tests/check.py": b"open('expected.txt')"}
    mutator = mutator_of(PATH)
    assert mutator is not None
    assert mutator.mutants(script.encode(), PATH, None, beside) == []
    assert mutator.mutants(script.encode(), PATH, {"test_it"}, BESIDE) == ()


@pytest.mark.parametrize(("script", "_after"), [one for one in IN_SCRIPT if "grep" not in one[0]])
def test_what_passes_a_script_fails_it_with_another_value(script: str, _after: str, tmp_path: Path) -> None:
    """Bash itself decides, with a program for each answer that may be right."""
    reward = tmp_path / "reward"

    def passes(text: str, answer: str) -> bool:
        reward.unlink(missing_ok=True)
        program = f"p() {{ echo {answer}; }}\nx=1\ntouch out\necho 1 > out\n"
        text = program + text.replace("/r", str(reward))
        found = subprocess.run(["bash", "-c", text], cwd=tmp_path, check=False, capture_output=True)
        if "/r" not in script:
            return found.returncode == 0
        return reward.exists() and reward.read_text().strip() == "1"

    mutator = mutator_of(PATH)
    assert mutator is not None
    (mutant,) = mutator.mutants(script.encode(), PATH)
    false = apply_mutants(script.encode(), [mutant]).decode()
    right = [answer for answer in ("42", "v1", "9", "abc", "5") if passes(script, answer)]
    assert len(right) == 1
    assert not passes(false, right[0])
