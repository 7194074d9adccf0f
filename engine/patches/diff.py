"""Creation of git-format patches: from two trees by git, from two texts without it.

Contents that are not UTF-8 become git's binary patches, so a patch is always valid text.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from engine.errors import PatchError
from engine.patches.commands import private_folder, run_git
from engine.patches.trees import FileState, Tree, write_tree

_SAME_SIDE = re.compile(r'^diff --git ("?)([ab])/(.*)("?) \1\2/\3\4$', re.MULTILINE)


def _is_text(state: FileState | None) -> bool:
    if state is None:
        return True
    try:
        state.data.decode()
    except UnicodeDecodeError:
        return False
    return True


def diff_trees(before: Tree, after: Tree) -> str:
    """Return the git-format patch that turns ``before`` into ``after``; empty when there is no difference."""
    names = sorted(
        name for name in {*before, *after}
        if name not in after or not after[name].same(before.get(name))
    )  # fmt: skip
    text: list[str] = []
    binary: list[str] = []
    for name in names:
        is_text = _is_text(before.get(name)) and _is_text(after.get(name))
        (text if is_text else binary).append(name)
    return "".join(
        _diff(
            {n: before[n] for n in group if n in before},
            {n: after[n] for n in group if n in after},
            attributes,
        )
        for group, attributes in ((text, ""), (binary, "* -diff\n"))
        if group
    )


def _diff(before: Tree, after: Tree, attributes: str) -> str:
    with private_folder(attributes) as name:
        folder = Path(name)
        write_tree(folder / "tree" / "a", before)
        write_tree(folder / "tree" / "b", after)
        options = ["--no-index", "--binary", "--full-index", "--no-renames", "--no-prefix", "--no-color"]
        done = run_git(folder, "diff", *options, "--no-ext-diff", "--no-textconv", "a", "b")
    if done.exit_code not in (0, 1):
        raise PatchError(f"git could not compare the files: {done.stderr}")
    return _SAME_SIDE.sub(_both_sides, done.output.decode())


def _both_sides(match: re.Match[str]) -> str:
    # With --no-index, git names an added or deleted file's only side twice; tools expect a/ and b/.
    quote, _, name, end = match.groups()
    return f"diff --git {quote}a/{name}{end} {quote}b/{name}{end}"


def diff_texts(path: str, before: str, after: str) -> str:
    """Return a git-format patch that turns ``before`` into ``after``; empty when they are equal."""
    if before == after:
        return ""
    lines = [f"diff --git a/{path} b/{path}\n"]
    differences = difflib.unified_diff(
        _split(before),
        _split(after),
        f"a/{path}",
        f"b/{path}",
    )
    for line in differences:
        lines.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(lines)


def _split(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)
