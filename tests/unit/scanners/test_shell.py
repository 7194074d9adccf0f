"""Reading of shell commands."""

from __future__ import annotations

import pytest

from engine.scanners import shell


@pytest.mark.parametrize(
    "first",
    [
        "python -c 'print(1 << x)'",
        "grep x <<< word",
        "ls  # what doesn't matter",
        "echo $((1 << x))",
        "cat > a.py <<'EOF' && ls\ndon't\nEOF",
        "cat <<A <<-B\n'\nA\n'\n\tB",
    ],
)
def test_later_lines_are_read(first: str) -> None:
    assert shell.commands(f"{first}\npytest tests")[-1] == ("pytest", "tests")


def test_redirections_are_no_arguments() -> None:
    [words] = shell.commands("timeout 60 python 'a b'.py \\\n -x 2>/dev/null >> out.txt 2>&1")
    assert shell.invocation(words) == ("python", "a b.py", "-x")
    assert list(shell.written_files([words])) == [("out.txt", False)]
    [words] = shell.commands("grep '>' a.py")
    assert list(shell.written_files([words])) == []
    assert shell.invocation(("<", "a.txt")) == ()


def test_long_scripts_are_cut() -> None:
    assert len(shell.commands("ls\n" * 1_000)) == shell.MOST
    assert sum(map(len, shell.commands("a " * 10_000))) == shell.MOST_WORDS
    assert shell.commands("ls; echo 'a\npytest") == [("ls",), ("echo",)]
