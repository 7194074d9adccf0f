"""Fuzzing of graded patches: protected files stay unchanged on disk.

A random patch performs one operation on a target, in a notation that git or patch reads. Other parts may
surround it: some apply, some apply with fuzz only, some are rejected. As a control, the patches change code.
"""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from engine.datasets.paths import is_configuration, is_installed, is_test_code
from engine.grading.submission.apply import apply_graded
from engine.patches.diff import diff_texts
from engine.patches.trees import read_tree
from engine.sandbox.base import Sandbox
from tests.unit.grading.test_patch_apply import Box, git, task

CODE = "".join(f"line {number}\n" for number in range(30))
TEST = "def test_a():\n    assert False\n"
FILES = {
    "a.py": CODE,
    "b.py": "forge()\n",
    "pkg/c.py": CODE,
    "pkg/checks/check_a.py": TEST,
    "checks.d/runner.txt": TEST,
    "hidden/deep/check.py": TEST,
    "tests/test_a.py": TEST,
    "tests/data/x.bin": "data\n",
    "conftest.py": "import a\n",
    "pytest.ini": "[pytest]\n",
    "bin/test": "#!/bin/sh\n",
}
NEW_TARGETS = (
    "pkg/conftest.py", "tests/conftest.py", "setup.cfg", "sitecustomize.py", "pytest.toml", "evil.pth",
    ".gitattributes", "hidden/new.py", "src/a.test.ts", "pkg/__tests__/a.js", "json.py",
)  # fmt: skip
TARGETS = (
    "pkg/checks/check_a.py", "checks.d/runner.txt", "hidden/deep/check.py", "tests/test_a.py",
    "tests/data/x.bin", "conftest.py", "pytest.ini", "bin/test", *NEW_TARGETS,
)  # fmt: skip
ROW = task(
    hidden_paths=("/w/hidden",),
    test_files={"/w/pkg/checks/check_a.py": TEST},
    test_patch=diff_texts("checks.d/runner.txt", "", TEST),
)
PATCHES = 40


def quoted(name: str) -> str:
    return '"' + "".join(f"\\{ord(character):03o}" for character in name) + '"'


def half_quoted(name: str) -> str:
    return f'"{name[:-1]}\\{ord(name[-1]):03o}"'


DATES = ("", "\t2020-01-01", " 2020-01-01 00:00:00.000000000 +0000", "\t(revision 1)", " ", "\t", "\r")
NAMES: tuple[Callable[[str, str], str], ...] = (
    lambda side, name: f"{side}/{name}",
    lambda side, name: f"{side}/{name}",
    lambda side, name: f"{side}/{name}",
    lambda _, name: name,
    lambda _, name: f"./{name}",
    lambda side, name: f"{side}//{name}",
    lambda side, name: f"{side}/./{name}",
    lambda side, name: f"{side}/x/../{name}",
    lambda side, name: f"x/{side}/{name}",
    lambda side, name: quoted(f"{side}/{name}"),
    lambda side, name: half_quoted(f"{side}/{name}"),
    lambda _, name: f"/w/{name}",
    lambda _, name: f"i/{name}",
)


def hunk(generator: random.Random, old: str, new: str) -> str:
    """Return a hunk for the whole file, sometimes with wrong counts, positions or context."""
    before, after = old.splitlines(), new.splitlines()
    start = generator.choice([1, 1, 1, 5]) if before else 0
    if before and generator.random() < 0.2:
        before[0] = f"{before[0]} "
    body = "".join(f"-{line}\n" for line in before) + "".join(f"+{line}\n" for line in after)
    counts = f"-{start},{len(before)} +{1 if after else 0},{len(after)}"
    if generator.random() < 0.1:
        counts = f"-{start},{len(before) + 1} +1,{len(after) + 1}"
    end = "\\ No newline at end of file\n" if generator.random() < 0.1 else ""
    return f"@@ {counts} @@\n{body}{end}"


def binary(data: bytes) -> str:
    packed = zlib.compress(data)
    padded = base64.b85encode(packed + b"\0" * (-len(packed) % 4)).decode()
    length_code = chr(ord("A") + len(packed) - 1)
    return f"GIT binary patch\nliteral {len(data)}\n{length_code}{padded}\n\nliteral 0\nHcmV?d00001\n\n"


def header(generator: random.Random, source: str, target: str, *, new: bool, gone: bool) -> str:
    """Return a file header in a random notation, for the given old and new paths."""
    name = generator.choice(NAMES)
    old_line = "/dev/null" if new and generator.random() < 0.8 else name("a", source)
    new_line = "/dev/null" if gone and generator.random() < 0.8 else name("b", target)
    dates = [generator.choice(DATES) if generator.random() < 0.4 else "" for _ in range(2)]
    lines = [f"--- {old_line}{dates[0]}\n", f"+++ {new_line}{dates[1]}\n"]
    first_lines = [
        "",
        f"diff --git {name('a', source)} {name('b', target)}\n",
        f"diff --git a/{source} b/{target}\n",
        f"diff --git a/a.py b/{target}\n",
        "diff --git a/a.py b/a.py\n",
        f"Index: {target}\n" + "=" * 67 + "\n",
        f"diff -urN {source} {target}\n",
    ]
    first_line = generator.choice(first_lines)
    mode = ""
    if first_line.startswith("diff --git"):
        if new:
            mode = generator.choice(
                ["", f"new file mode {generator.choice(['100644', '100755', '120000'])}\n"]
            )
        elif gone:
            mode = generator.choice(["", "deleted file mode 100644\n"])
        if generator.random() < 0.3:
            mode += "index 1111111..2222222 100644\n"
    kept = lines if generator.random() < 0.9 else generator.sample(lines, 1)
    return first_line + mode + "".join(kept)


def random_part(generator: random.Random, target: str) -> str:
    """Return a patch that creates, changes, removes, moves, copies, links or replaces the target."""
    old = FILES.get(target, "")
    above = target.rpartition("/")[0] or target
    link = "@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n"
    git_header = f"diff --git a/{target} b/{target}\n"
    match generator.randrange(14):
        case 0 | 1 | 2:
            return header(generator, target, target, new=not old, gone=False) + hunk(
                generator, old, "forge()\n"
            )
        case 3:
            return header(generator, target, target, new=False, gone=True) + hunk(generator, old, "")
        case 4:
            verb = generator.choice(["rename", "copy"])
            return (
                f"diff --git a/b.py b/{target}\nsimilarity index 100%\n{verb} from b.py\n{verb} to {target}\n"
            )
        case 5:
            return (
                f"diff --git a/{target} b/moved.py\nsimilarity index 100%\n"
                f"rename from {target}\nrename to moved.py\n"
            )
        case 6:
            return f"{git_header}old mode 100644\nnew mode 100755\n"
        case 7:
            deletion = f"{git_header}deleted file mode 100644\n--- a/{target}\n+++ /dev/null\n"
            remove = deletion + hunk(random.Random(0), old, "") if old else ""
            return f"{remove}{git_header}new file mode 120000\n--- /dev/null\n+++ b/{target}\n{link}"
        case 8:
            return (
                f"diff --git a/{above} b/{above}\nnew file mode 120000\n--- /dev/null\n+++ b/{above}\n{link}"
            )
        case 9:
            place = generator.choice([target, above])
            return (
                f"diff --git a/{place} b/{place}\nnew file mode 160000\nindex 0000000..{'1' * 40}\n"
                f"--- /dev/null\n+++ b/{place}\n@@ -0,0 +1 @@\n+Subproject commit {'1' * 40}\n"
            )
        case 10:
            kind = generator.choice(["new file mode 100644\n", ""])
            return f"{git_header}{kind}index {'0' * 40}..{'2' * 40}\n{binary(b'forge()')}"
        case 11:
            nested = f"{target}/x.py"
            return header(generator, nested, nested, new=True, gone=False) + hunk(generator, "", "x\n")
        case 12:
            return header(generator, "a.py", target, new=False, gone=False) + hunk(
                generator, CODE, "forge()\n"
            )
        case _:
            return f"*** a/{target}\n--- b/{target}\n***************\n*** 0 ****\n--- 1 ----\n+ forge()\n"


GOOD = diff_texts("a.py", CODE, CODE.replace("line 3\n", "better\n"))
FUZZY = GOOD.replace(" line 2\n", " other 2\n")
REJECTED = diff_texts("pkg/c.py", "nothing like it\n", "new\n")


def random_patch(generator: random.Random, target: str) -> str:
    parts = [random_part(generator, target) for _ in range(generator.choice([1, 1, 2]))]
    parts += generator.sample(
        [GOOD, FUZZY, FUZZY, REJECTED, "1a\nforge()\n.\nw\n"], generator.choice([0, 1, 1, 2])
    )
    generator.shuffle(parts)
    patch = "".join(parts)
    if generator.random() < 0.1:
        patch = patch.replace("\n", "\r\n")
    if generator.random() < 0.1:
        patch = patch.rstrip("\n")
    if generator.random() < 0.1:
        patch = f"Here is the fix:\n\n{patch}\n-- \n2.39.5\n"
    return patch


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return git mode, and content or link target, of every file outside ``.git``."""
    tree = {name: state for name, state in read_tree(folder).items() if not name.startswith(".git/")}
    return {name: (state.git_mode, state.data) for name, state in tree.items()}


def is_protected(path: str) -> bool:
    row_paths = ("pkg/checks/check_a.py", "checks.d/runner.txt", "hidden", "json.py")
    is_in_row = any(path == name or path.startswith(f"{name}/") for name in row_paths)
    return is_in_row or is_test_code(path) or is_configuration(path) or is_installed(path)


def make_repository(folder: Path) -> Box:
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "x")
    return Box(folder)


def reset(folder: Path) -> None:
    git(folder, "reset", "-q", "--hard")
    git(folder, "clean", "-qfdx")


async def test_random_patches_never_change_protected_files(tmp_path: Path) -> None:
    generator = random.Random(1)
    box = make_repository(tmp_path)
    original = {path: state for path, state in contents(tmp_path).items() if is_protected(path)}
    assert set(original) > {"conftest.py", "hidden/deep/check.py", "bin/test", "tests/test_a.py"}
    counts = {"left out": 0, "refused": 0, "nothing": 0}
    for _ in range(PATCHES):
        patch = random_patch(generator, generator.choice(TARGETS))
        applied = await apply_graded(cast(Sandbox, box), patch, ROW)
        after = contents(tmp_path)
        assert {path: state for path, state in after.items() if is_protected(path)} == original, patch
        counts["refused" if applied.problem else "left out" if applied.filtered.left_out else "nothing"] += 1
        reset(tmp_path)
    assert counts["left out"] >= PATCHES / 10, counts
    assert counts["refused"], counts


async def test_random_patches_change_unprotected_code(tmp_path: Path) -> None:
    """Show that the random patches are effective: at least one in eight changes its target."""
    generator = random.Random(0)
    box = make_repository(tmp_path)
    changed = 0
    for _ in range(PATCHES):
        target = generator.choice(["pkg/c.py", "pkg/d.py"])
        before = contents(tmp_path)
        await apply_graded(cast(Sandbox, box), random_patch(generator, target), ROW)
        after = contents(tmp_path)
        changed += any(before.get(path) != after.get(path) for path in ("pkg/c.py", "pkg/d.py", "pkg"))
        reset(tmp_path)
    assert changed >= PATCHES / 8
