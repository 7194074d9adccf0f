"""Conformance of files: reading, writing, listing, the diff of every kind of edit, and applying it elsewhere.

To cover another kind of edit, add it to ``_EDITS``.
"""

from __future__ import annotations

from engine.errors import PatchError
from engine.patches.apply import Changes
from engine.patches.trees import FileState
from engine.sandbox.base import Sandbox
from engine.sandbox.conformance.subject import Subject, check, raises

_EDITS = r"""
set -e
sed -i s/second/2nd/ a.txt
printf 'changed\n' >> 'no newline'
printf '\000\001binary' > binary.dat
printf 'caf\351 \344\n' > latin.txt
printf 'one\r\n2\r\n' > crlf.bat
printf 'mixed\nend\r\n' > other.bat
rm deep/er/file
chmod -x tool.sh
chmod +x pkg/module.py
rm link && ln -s pkg link
ln -s a.txt newlink
rm dangling && mkdir dangling && echo now > dangling/file
rm outside && mkdir outside && echo mine > outside/passwd
mkdir -p new/folder && printf 'new' > new/folder/file && : > new/empty
echo ignored > ignored.txt
echo log > some.log
mv pkg/__init__.py pkg/renamed.py
echo more >> *odd.txt
echo odd > "$(printf 'new\nline\t"quoted" \\back')"
echo spaced > 'trailing space '
mkdir -p pkg/__pycache__ .pytest_cache && echo no > pkg/__pycache__/x.pyc && echo no > .pytest_cache/x
echo 'diff --git b/x b/x' > tricky && echo '--- ../../etc/passwd' >> tricky
"""

_STATE = (
    r"find . -name .git -prune -o -name __pycache__ -prune -o -name .pytest_cache -prune -o "
    r"\( -type f -o -type l \) -printf '%y %p %l\n' | sort; "
    r"find . -type f -perm -100 -not -path './.git/*' | sort; "
    r"find . -name .git -prune -o -name __pycache__ -prune -o -name .pytest_cache -prune -o "
    r"-type f -print0|sort -z|xargs -0 sha1sum"
)


async def _run(sandbox: Sandbox, script: str) -> bytes:
    result = await sandbox.exec(script, timeout_s=60, output_cap=1 << 20)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@check
async def reads_and_writes_files_of_any_content_and_name(subject: Subject) -> None:
    """Covers 8 MiB, empty files, odd names, relative and absolute paths, new folders, and modes."""
    async with subject.open() as sandbox:
        big = bytes(range(256)) * (8 << 12)
        for name, data in (
            ("big", big),
            ("empty", b""),
            ("new/\u00e9 \n'\"$x", b"odd"),
            ("/tmp/elsewhere", b"abs"),
        ):
            await sandbox.write_file(name, data)
            assert await sandbox.read_file(name) == data
        assert await sandbox.read_file("a.txt") == b"first\nsecond\nthird\n"
        await sandbox.write_file("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        assert await _run(sandbox, "./run.sh") == b"ran\n"
        await sandbox.write_file("tool.sh", b"#!/bin/sh\necho new\n")
        assert await _run(sandbox, "./tool.sh; stat -c %a big tool.sh") == b"new\n644\n755\n"
        await sandbox.write_file("link", b"through the link")
        assert await sandbox.read_file("a.txt") == b"through the link"


@check
async def file_errors_are_those_of_the_file_system(subject: Subject) -> None:
    """Covers missing, too large, forbidden, irregular files, impossible names; the sandbox keeps working."""
    async with subject.open() as sandbox:
        with raises(FileNotFoundError):
            await sandbox.read_file("missing")
        with raises(IsADirectoryError):
            await sandbox.read_file("pkg")
        with raises(IsADirectoryError):
            await sandbox.write_file("pkg", b"x")
        with raises(NotADirectoryError):
            await sandbox.write_file("a.txt/child", b"x")
        with raises(FileNotFoundError):
            await sandbox.list_dir("missing")
        with raises(ValueError, "larger"):
            await sandbox.read_file("a.txt", max_bytes=3)
        if subject.uid != 0:
            with raises(OSError):
                await sandbox.write_file("/usr/bin/evil", b"x")
        await _run(sandbox, "mkfifo fifo; chmod 000 .hidden")
        with raises(OSError, "regular"):
            await sandbox.read_file("fifo")
        with raises(PermissionError):
            await sandbox.read_file(".hidden")
        for call in (sandbox.read_file("a\0b"), sandbox.write_file("a\0b", b"x"), sandbox.list_dir("a\0b")):
            with raises(OSError, "null"):
                await call
        with raises(PatchError, "null"):
            await sandbox.fetch_files(["a\0b"])
        assert await sandbox.read_file("a.txt") == b"first\nsecond\nthird\n"


@check
async def lists_folders(subject: Subject) -> None:
    """Names are relative and sorted, folders marked, hidden files omitted, links not followed."""
    async with subject.open() as sandbox:
        await _run(sandbox, "mkdir z && touch z/b z/a && mkdir z/c && touch z/c/d z/.no && ln -s c z/e")
        assert await sandbox.list_dir("z") == ["a", "b", "c/", "e"]
        assert await sandbox.list_dir(f"{subject.workdir}/z", depth=2) == ["a", "b", "c/", "c/d", "e"]


@check
async def an_untouched_sandbox_has_no_diff(subject: Subject) -> None:
    """Touching, rewriting with the same content and permission bits git ignores do not count."""
    async with subject.open() as sandbox:
        assert await sandbox.diff() == ""
        await _run(
            sandbox, "touch a.txt; cp latin.txt x; mv x latin.txt; chmod 600 .hidden; mkdir emptyfolder"
        )
        assert await sandbox.diff() == ""


@check
async def the_diff_of_every_kind_of_edit_applies_to_a_fresh_sandbox(subject: Subject) -> None:
    """Changes hidden from git by ignore and attribute files are included."""
    async with subject.open() as sandbox, subject.open() as fresh:
        await _run(sandbox, _EDITS)
        patch = await sandbox.diff()
        assert patch.encode().decode() == patch
        assert "\0" not in patch
        assert "__pycache__" not in patch
        assert "diff --git a/new/folder/file b/new/folder/file\nnew file mode 100644\n" in patch
        assert "-    return 41" not in patch
        assert "diff --git a/outside/passwd b/outside/passwd\nnew file mode 100644\n" in patch
        assert "diff --git a/tool.sh b/tool.sh\nold mode 100755\nnew mode 100644\n" in patch
        assert "-second\n+2nd\n" in patch
        await fresh.apply_patch(patch)
        assert await _run(fresh, _STATE) == await _run(sandbox, _STATE)
        assert await fresh.diff() == patch


@check
async def commits_and_git_settings_inside_do_not_influence_the_diff(subject: Subject) -> None:
    """An agent that commits, rewrites ``.git`` or configures filters does not change the diff."""
    async with subject.open() as plain, subject.open() as sandbox:
        await plain.write_file("a.txt", b"first\nfixed\nthird\n")
        script = (
            "git init -q . && git config user.name a && git config user.email a@b && "
            "git add -A && git commit -qm base && "
            "printf 'first\\nfixed\\nthird\\n' > a.txt && "
            "git commit -qam fix && git config core.autocrlf true && git config diff.external /bin/false && "
            "git config diff.custom.textconv /bin/false && echo '* -text' > .git/info/attributes && "
            "git update-index --assume-unchanged a.txt && git gc -q"
        )
        await _run(sandbox, script)
        assert await sandbox.diff() == await plain.diff()


@check
async def a_bad_patch_changes_nothing(subject: Subject) -> None:
    """Covers mismatches, garbage, half-applicable patches, and names outside of the workdir."""
    good = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n first\n-second\n+2nd\n third\n"
    bad = "--- a/deep/er/file\n+++ b/deep/er/file\n@@ -1 +1 @@\n-other\n+new\n"
    new = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x\n"
    async with subject.open() as sandbox:
        await _run(sandbox, "ln -s /tmp out && ln -s pkg inside")
        names = ("../escape", "/tmp/escape", "out/escape", "inside/x", ".git/config")
        escapes = [new.format(name) for name in names]
        for patch in (good + bad, bad, "no patch at all\n", good.replace("second", "other"), *escapes):
            with raises(PatchError):
                await sandbox.apply_patch(patch)
        listing = await _run(sandbox, "ls /tmp .. pkg | grep -c escape; cat a.txt; ls -A pkg; test ! -e .git")
        assert listing == b"0\nfirst\nsecond\nthird\n__init__.py\nmodule.py\n"
        await sandbox.apply_patch("")
        await sandbox.apply_patch(good)
        assert await sandbox.read_file("a.txt") == b"first\n2nd\nthird\n"


@check
async def a_patch_may_rename_copy_and_carry_windows_newlines(subject: Subject) -> None:
    """Patches written by other tools apply."""
    rename = (
        "diff --git a/pkg/module.py b/lib/moved.py\nsimilarity index 60%\nrename from pkg/module.py\n"
        "rename to lib/moved.py\n--- a/pkg/module.py\n+++ b/lib/moved.py\n@@ -1,2 +1,2 @@\n def answer():\n"
        "-    return 41\n+    return 42\n"
    )
    copy = (
        "diff --git a/a.txt b/copy of a.txt\nsimilarity index 100%\ncopy from a.txt\ncopy to copy of a.txt\n"
    )
    crlf = "diff --git a/crlf.bat b/crlf.bat\n--- a/crlf.bat\n+++ b/crlf.bat\n"
    crlf += "@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n"
    async with subject.open() as sandbox:
        await sandbox.apply_patch(rename + copy + crlf)
        assert await sandbox.read_file("lib/moved.py") == b"def answer():\n    return 42\n"
        assert await sandbox.read_file("copy of a.txt") == b"first\nsecond\nthird\n"
        assert await sandbox.read_file("crlf.bat") == b"one\r\n2\r\n"
        with raises(FileNotFoundError):
            await sandbox.read_file("pkg/module.py")


@check
async def files_are_committed_completely_or_not_at_all(subject: Subject) -> None:
    """Files and symlinks are read and written by name; no name may pass through a symlink."""
    new, link = FileState(0o100755, b"new\n"), FileState(0o120777, b"a.txt")
    async with subject.open() as sandbox:
        await _run(sandbox, "ln -s /tmp out && ln -s pkg inside")
        for name in ("out/escape", "inside/escape", "../escape", "a.txt/below"):
            with raises(PatchError):
                await sandbox.commit_files(Changes({"a.txt": new, name: new}, ()))
        with raises(PatchError):
            await sandbox.commit_files(Changes({"a.txt": new}, ("inside/module.py",)))
        assert (
            await _run(sandbox, "cat a.txt; ls /tmp .. pkg | grep -c escape; true")
            == b"first\nsecond\nthird\n0\n"
        )
        before = await sandbox.fetch_files(["a.txt", "inside", "absent", "pkg", "inside/module.py"])
        assert {name: state.data for name, state in before.items()} == {
            "a.txt": b"first\nsecond\nthird\n", "inside": b"pkg",
        }  # fmt: skip
        await sandbox.commit_files(Changes({"deep/new/file": new, "a link": link}, ("a.txt",)))
        after = await sandbox.fetch_files(["a.txt", "deep/new/file", "a link"])
        assert {name: (state.git_mode, state.data) for name, state in after.items()} == {
            "deep/new/file": (0o100755, b"new\n"), "a link": (0o120000, b"a.txt"),
        }  # fmt: skip


@check
async def hidden_paths_are_gone_and_the_diff_keeps_silent(subject: Subject) -> None:
    """Covers files and folders, inside and outside of the workdir; the diff still has other changes."""
    async with subject.open() as sandbox:
        await sandbox.write_file("/tmp/outside/key", b"answer")
        await sandbox.hide(["pkg", "a.txt", "/tmp/outside", "not/there"])
        for path in ("pkg/module.py", "a.txt", "/tmp/outside/key"):
            assert (await sandbox.exec(["ls", "-d", path], timeout_s=10)).exit_code != 0, path
        assert await sandbox.diff() == ""
        await sandbox.write_file("pkg/new.py", b"again\n")
        await sandbox.write_file("pkgs", b"a neighbour\n")
        patch = await sandbox.diff()
    assert "pkgs" in patch
    assert "pkg/" not in patch


@check
async def adopted_changes_are_no_changes(subject: Subject) -> None:
    """After ``adopt`` the diff contains only later changes, relative to the adopted tree."""
    async with subject.open() as sandbox:
        await sandbox.write_file("a.txt", b"adopted\n")
        await sandbox.write_file("new.txt", b"new\n")
        assert (await sandbox.exec(["rm", "pkg/module.py"], timeout_s=10)).exit_code == 0
        await sandbox.adopt()
        assert await sandbox.diff() == ""
        await sandbox.write_file("a.txt", b"later\n")
        assert (await sandbox.exec(["rm", "new.txt"], timeout_s=10)).exit_code == 0
        patch = await sandbox.diff()
    assert "-adopted\n+later\n" in patch
    assert "deleted file mode" in patch
    assert "pkg/module.py" not in patch
