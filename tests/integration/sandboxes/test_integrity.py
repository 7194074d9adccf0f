"""Repositories prepared for agents and for grading: no hidden tests and no trace of the fix."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from engine.errors import PatchError
from engine.patches.diff import diff_texts
from engine.sandbox import integrity
from engine.sandbox.base import Sandbox, SandboxSpec
from engine.sandbox.integrity import prepare_for_agent, prepare_for_grading
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.preflight import preflight
from tests.builders.dataset_builders import new_file

FIXED, BUGGY = "def f():\n    return 1\n", "def f():\n    return 0\n"
IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk"]


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", *IDENTITY, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with images of a repository with the fix in later commits and refs, and of a broken one."""
    home = tmp_path_factory.mktemp("integrity")
    tree = home / "tree"
    tree.mkdir()
    git(tree, "init", "-q")
    (tree / "code.py").write_text(BUGGY)
    (tree / "tests").mkdir()
    (tree / "tests" / "test_hidden.py").write_text("SECRET = 1\n")
    (tree / ".gitignore").write_text("build/\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "old")
    (tree / "code.py").write_text(FIXED)
    git(tree, "commit", "-qam", "the fix")
    git(tree, "tag", "fixed")
    git(tree, "branch", "later")
    git(tree, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(tree, "reset", "-q", "--hard", "HEAD~1")
    (tree / "code.py").write_text("# stashed\n")
    git(tree, "stash", "-q")
    hook = tree / ".git" / "hooks" / "post-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    nested = tree / "vendor"
    nested.mkdir()
    git(nested, "init", "-q")
    (tree / "build").mkdir()
    (tree / "build" / "out.bin").write_bytes(b"\0built")
    build_image(home, "repository", tree)
    broken = home / "broken"
    (broken / ".git").mkdir(parents=True)
    (broken / ".git" / "HEAD").write_text("nonsense")
    (broken / "code.py").write_text(BUGGY)
    build_image(home, "broken", broken)
    return home


@pytest.fixture
async def box(home: Path) -> AsyncIterator[Sandbox]:
    backend = LocalBackend(home)
    problems = [finding for finding in await preflight(backend) if finding.severity == "error"]
    if problems:
        pytest.skip(f"no local sandboxes here: {problems[0]}")
    async with backend.open(SandboxSpec(image="local:repository")) as sandbox:
        yield sandbox


async def run(box: Sandbox, command: str) -> str:
    result = await box.exec(command, timeout_s=30)
    return (result.stdout + result.stderr).decode().strip()


async def test_agent_repository_has_a_single_anonymous_commit(box: Sandbox, home: Path) -> None:
    fix = git(home / "tree", "rev-parse", "fixed")
    await prepare_for_agent(box)
    assert await run(box, "git log --all --reflog --oneline | wc -l") == "1"
    assert await run(box, "git fsck --unreachable --no-reflogs 2>/dev/null") == ""
    assert await run(box, "git tag; git branch -r; git stash list; git reflog; git remote") == ""
    assert "fatal" in await run(box, f"git show {fix}")
    assert await run(box, "grep -rl 'return 1' .git; ls .git/hooks .git/logs 2>/dev/null") == ""
    assert await run(box, "find . -name .git") == "./.git"
    assert await run(box, "git log -1 --format='%an %s %aI'") == "base base 2000-01-01T00:00:00+00:00"


async def test_grading_keeps_the_base_commit_and_no_later_history(box: Sandbox, home: Path) -> None:
    fix, base = git(home / "tree", "rev-parse", "fixed"), git(home / "tree", "rev-parse", "HEAD")
    await prepare_for_grading(box, commits=[base[:12], "0123456789abcdef"])
    assert await run(box, "git fsck --unreachable --no-reflogs") == ""
    assert (
        await run(box, "git branch -r; git stash list; git reflog; git remote; find . -name .git") == "./.git"
    )
    assert await run(box, "git log --all --format=%s") == "base\nold"
    assert await run(box, f"git rev-parse HEAD~1; git show --format= HEAD; git diff {base}") == base
    assert "fatal" in await run(box, f"git show {fix}")
    assert await run(box, "git cat-file --batch-all-objects --batch | grep -c 'return 1'") == "0"
    await run(box, f"echo broken > tests/test_hidden.py; git checkout -q {base} -- tests")
    assert await run(box, "cat tests/test_hidden.py; git status --porcelain") == "SECRET = 1"
    assert await box.diff() == ""


async def test_grading_keeps_only_the_required_files_of_a_later_commit(box: Sandbox, home: Path) -> None:
    fix = git(home / "tree", "rev-parse", "fixed")
    await prepare_for_grading(box, commits=[fix], files=["tests/test_hidden.py"])
    await run(box, "rm tests/test_hidden.py")
    assert (
        await run(box, f"git checkout {fix} -- tests/test_hidden.py && cat tests/test_hidden.py")
        == "SECRET = 1"
    )
    assert await run(box, "git log --all --format=%s") == "base\nbase"
    assert "return 1" not in await run(
        box, f"git show {fix}:code.py; git checkout {fix} -- code.py; cat code.py"
    )


async def test_grading_drops_the_image_commit_when_a_setup_patch_adds_the_bug(
    box: Sandbox, home: Path
) -> None:
    """With a setup patch, the image's own commit is the solution."""
    base = git(home / "tree", "rev-parse", "HEAD")
    bug = diff_texts("code.py", BUGGY, "def f():\n    return None\n")
    await box.apply_patch(bug)
    await prepare_for_grading(box, commits=[base], setup_patch=bug)
    assert await run(box, "git show HEAD:code.py; git status --porcelain") == "def f():\n    return None"
    assert await run(box, "git cat-file --batch-all-objects --batch | grep -c 'return 0'") == "0"
    assert "return 0" not in await run(box, f"git show {base}:code.py")


async def test_grading_keeps_the_nearest_tag_for_version_lookups(box: Sandbox, home: Path) -> None:
    await run(box, "git tag v1.2 HEAD && git tag v9 fixed")
    await prepare_for_grading(box)
    assert await run(box, "git describe --tags --abbrev=0; git tag") == "v1.2\nv1.2"
    assert await run(box, "git fsck --unreachable --no-reflogs") == ""


VERSIONED = (
    "git reset -q --hard && git clean -qfdx -e vendor && "
    "git commit -q --allow-empty -m second && git tag -a -m one v1.0 HEAD~1 && git tag nightly-7 && "
    "git commit -q --allow-empty -m third && git tag v9 fixed && {files} && git add -A && "
    "git -c user.name=a -c user.email=a@b commit -qm build"
)


@pytest.mark.parametrize("files", ["echo '[tool.setuptools_scm]' > pyproject.toml", "touch versioneer.py"])
@pytest.mark.parametrize("named", [True, False])
async def test_grading_keeps_earlier_commits_for_projects_versioned_by_git(
    box: Sandbox, home: Path, files: str, named: bool
) -> None:
    """Earlier commits and tags lose their files, later ones are removed, and the tree is unchanged."""
    await run(box, f"rm -rf vendor; git config user.name a; git config user.email a@b; "
              f"{VERSIONED.format(files=files)}")  # fmt: skip
    base = await run(box, "git rev-parse HEAD")
    described = await run(box, "git describe --long --tags --match 'v[0-9]*'")
    assert described.startswith("v1.0-3-g")
    await prepare_for_grading(box, commits=[base] if named else [])
    long = "git describe --dirty --long --match 'v[0-9]*'"
    steps = 4 if named else 5
    assert (await run(box, long)).startswith(f"v1.0-{steps}-g")
    assert (await run(box, f"{long} --tags; git describe --tags --abbrev=0; git tag")).endswith(
        "nightly-7\nnightly-7\nv1.0"
    )
    assert await run(box, "git log --format=%s | tail -4") == "build\nthird\nsecond\nold"
    assert await run(box, "git status --porcelain; git show --format=; cat .git/shallow 2>&1 | wc -l") == "1"
    fix = git(home / "tree", "rev-parse", "fixed")
    assert "fatal" in await run(box, f"git show {fix}")
    assert "fatal" in await run(box, "git rev-parse -q v9 --")
    assert await run(box, "git cat-file --batch-all-objects --batch | grep -c 'return 1\\|the fix'") == "0"
    assert await run(box, "git rev-list --all --reflog | wc -l") == str(steps + 1)


async def test_grading_removes_a_broken_repository_and_accepts_a_missing_one(
    home: Path, box: Sandbox
) -> None:
    async with LocalBackend(home).open(SandboxSpec(image="local:broken")) as broken:
        await prepare_for_grading(broken, commits=["0123456789"])
        assert await run(broken, "ls -A") == "code.py"
        await prepare_for_grading(broken, commits=["0123456789"])
        assert await run(broken, "ls -A") == "code.py"


async def test_prepared_repository_works_and_its_diff_starts_empty(box: Sandbox) -> None:
    assert await box.diff() == ""
    await prepare_for_agent(box)
    assert await run(box, "git status --porcelain") == ""
    assert await box.diff() == ""
    await box.write_file("code.py", FIXED.encode())
    await run(box, "git commit -qam mine && git rm -q --cached code.py")
    assert "+    return 1" in await box.diff()


async def test_hidden_tests_are_neither_in_the_tree_nor_in_the_commit(box: Sandbox) -> None:
    await prepare_for_agent(box, hidden_paths=["tests/test_hidden.py", "/testbed/build", "/nowhere"])
    assert "No such file" in await run(box, "cat tests/test_hidden.py")
    assert await run(box, "git ls-files; git ls-tree -r --name-only HEAD | sort") == "\n".join(
        [".gitignore", "code.py"] * 2
    )
    assert await run(box, "git grep SECRET $(git rev-list --all)") == ""
    assert await run(box, "git status --porcelain") == ""
    assert await box.diff() == ""


async def test_setup_patch_is_part_of_the_base_and_not_of_the_diff(box: Sandbox) -> None:
    bug = diff_texts("code.py", BUGGY, "def f():\n    return None\n") + new_file("extra.py", "x = 1\n")
    await prepare_for_agent(box, setup_patch=bug)
    assert await run(box, "git status --porcelain; git diff HEAD; cat extra.py") == "x = 1"
    assert await run(box, "git log --all -p | grep -c 'return 0'") == "0"
    assert await box.diff() == ""
    await box.write_file("code.py", FIXED.encode())
    await run(box, "rm extra.py")
    patch = await box.diff()
    assert "-    return None\n+    return 1" in patch
    assert "deleted file" in patch
    await box.adopt()
    assert await box.diff() == ""


async def test_broken_repository_is_removed_and_logged_once(home: Path, box: Sandbox) -> None:
    async with LocalBackend(home).open(SandboxSpec(image="local:broken")) as broken:
        integrity._reported.clear()
        with structlog.testing.capture_logs() as logs:
            await prepare_for_agent(broken)
            async with LocalBackend(home).open(SandboxSpec(image="local:broken")) as other:
                await prepare_for_grading(other)
        assert await run(broken, "ls -A") == "code.py"
    assert [(log["image"], "not a git repository" in log["reason"]) for log in logs] == [
        ("local:broken", True)
    ]


ODD = {
    "sha256": "rm -rf .git && git init -q --object-format=sha256 . && git add code.py && git commit -qm a",
    "locks": "touch .git/index.lock .git/HEAD.lock",
    "conflict": "git checkout -qb other && echo '# mine' >> code.py && git commit -qam a && "
    "git checkout -q - && echo '# yours' >> code.py && git commit -qam b && ! git merge -q other",
    "autocrlf": "git config core.autocrlf true && rm -r code.py tests && git checkout -q .",
    "filemode": "git config core.filemode false && chmod +x code.py",
    "worktree": "cp -r .git /tmp/moved && rm -rf .git && git --git-dir=/tmp/moved worktree add -q /tmp/other "
    "&& cp /tmp/other/.git . && git reset -q",
}


@pytest.mark.parametrize("kept", [False, True], ids=["agent", "grading"])
@pytest.mark.parametrize("odd", ODD)
async def test_repositories_in_odd_states_stay_usable(box: Sandbox, odd: str, kept: bool) -> None:
    settings = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b\n"
    assert await run(box, f"{settings}({ODD[odd]}) >/dev/null 2>&1 || echo failed") == ""
    await (prepare_for_grading(box) if kept else prepare_for_agent(box))
    assert await run(box, "git status --short --untracked-files=no") == ""
    assert await run(box, "git fsck 2>&1") == ""
    assert await run(box, "git log -1 --format=%s") == "base"


async def test_project_virtual_environment_is_first_on_the_path(box: Sandbox) -> None:
    assert await prepare_for_agent(box) == {}
    await run(box, "mkdir -p .venv/bin && ln -s /bin/sh .venv/bin/python")
    env = await prepare_for_agent(box)
    assert env["PATH"].startswith("/testbed/.venv/bin:/")
    result = await box.exec("command -v python", timeout_s=10, env=env)
    assert result.stdout == b"/testbed/.venv/bin/python\n"


async def test_sandbox_survives_deeply_nested_folders(box: Sandbox) -> None:
    deep = "a/" * 1200 + "f"
    with pytest.raises(OSError, match="too many nested folders|File name too long"):
        await box.write_file(deep, b"x")
    make = "import os\nfor _ in range(1200): os.mkdir('a'); os.chdir('a')\nopen('f', 'w').close()"
    assert await run(box, f'python3 -c "{make}"') == ""
    with pytest.raises(PatchError, match="a path through 1200 folders"):
        await box.diff()
    assert await run(box, "echo alive") == "alive"
