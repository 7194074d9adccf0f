"""The tools: exact edits on files in memory, commands and searches in a real shell."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.tools import (
    CommandResult,
    ExecuteBash,
    FileEditor,
    MemoryFileStore,
    ObservationStyle,
    Search,
    ToolResult,
    cap_characters,
)

SOURCE = b"def f(a):\n    if a:\n        return 1\n    return 2\n"


def editor(
    files: dict[str, bytes], style: ObservationStyle = "compact", snippet_lines: int = 0
) -> tuple[FileEditor, MemoryFileStore]:
    store = MemoryFileStore(files)
    return FileEditor(store, workdir="/testbed", style=style, snippet_lines=snippet_lines), store


def edit(tool: FileEditor, command: str, path: str = "a.py", **arguments: Any) -> ToolResult:
    return asyncio.run(tool.run({"command": command, "path": path, **arguments}))


def test_view_numbers_lines() -> None:
    tool, _ = editor({"/testbed/a.py": SOURCE})
    assert edit(tool, "view", view_range=[2, 3]).observation == "    2      if a:\n    3          return 1"
    assert edit(tool, "view", view_range=[4, -1]).observation == "    4      return 2"
    assert edit(tool, "view", view_range=[4, 99]).observation == "    4      return 2"
    assert edit(tool, "view", view_range=[5, 6]).error.startswith("view_range must start between 1 and 4")
    assert edit(tool, "view", view_range=[3, 2]).error.startswith("view_range ends before it starts")


def test_view_lists_folders_two_levels_deep_without_hidden_files() -> None:
    names = ("a.py", "d/b.py", "d/e/c.py", ".git/config", "d/.x")
    tool, _ = editor({f"/testbed/{name}": b"" for name in names})
    listed = edit(tool, "view", ".").observation.split("\n")
    assert listed == ["a.py", "d/", "d/b.py", "d/e/"]
    assert "folder" in edit(tool, "view", "d", view_range=[1, 2]).error


def test_full_style_view_leaves_out_bodies_of_long_python_files() -> None:
    body = "".join(f"    x{i} = {i}\n" for i in range(120))
    source = f"import os\n\n\ndef long():\n{body}\n\ndef short():\n    return 1\n".encode()
    tool, _ = editor({"/testbed/a.py": source}, "full")
    shown = edit(tool, "view").observation
    assert "... lines 5-124 left out ..." in shown
    assert "  127  def short():\n  128      return 1" in shown
    assert "x60" not in shown
    assert "x60" in edit(tool, "view", view_range=[1, -1]).observation
    assert "x60" in edit(tool, "view", concise=False).observation
    compact, _ = editor({"/testbed/a.py": source})
    assert "x60" in edit(compact, "view").observation


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b\n", "", b"a\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "\nb", "\nx", b"a\r\nx\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b\r\nc", "x\r\ny", b"a\r\nx\r\ny\r\n"),
        (b"a\r\nb\r\nc\n", "a\nb\nc", "x\ny", b"x\r\ny\n"),
        (b"a\nb\r\nc\nd\n", "b\nc", "x\ny", b"a\nx\ny\nd\n"),
        (b"a\nb\n", "b", "x\r\ny", b"a\nx\r\ny\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb\r", "x\ny", b"x\ny\nc\r\n"),
    ],
)
def test_multiline_replacements_use_the_line_endings_of_the_file(
    before: bytes, old: str, new: str, after: bytes
) -> None:
    tool, store = editor({"/testbed/a.py": before})
    assert edit(tool, "str_replace", old_str=old, new_str=new).observation == "ok"
    assert store.files["/testbed/a.py"] == after


def test_crlf_is_hidden_in_views_and_kept_in_files() -> None:
    source = SOURCE.replace(b"\n", b"\r\n")
    tool, store = editor({"/testbed/a.py": source}, snippet_lines=1)
    assert edit(tool, "view", view_range=[2, 2]).observation == "    2      if a:"
    answer = edit(tool, "insert", insert_line=1, new_str="    b = a\n    a = b")
    assert answer.observation == (
        "ok\n    1  def f(a):\n    2      b = a\n    3      a = b\n    4      if a:"
    )
    head, tail = source.split(b"\r\n", 1)
    assert store.files["/testbed/a.py"] == head + b"\r\n    b = a\r\n    a = b\r\n" + tail
    assert "occurs 5 times" in edit(tool, "str_replace", old_str="\n    ", new_str="x").error
    edit(tool, "undo_edit")
    assert store.files["/testbed/a.py"] == source
    store.files["/testbed/b.py"] = source.removesuffix(b"\r\n")
    edit(tool, "insert", "b.py", insert_line=4, new_str="x")
    assert store.files["/testbed/b.py"] == source + b"x\r\n"


def test_str_replace_needs_exactly_one_occurrence() -> None:
    tool, store = editor({"/testbed/a.py": SOURCE})
    assert edit(tool, "str_replace", old_str="return 1", new_str="return 3").observation == "ok"
    assert store.files["/testbed/a.py"] == SOURCE.replace(b"return 1", b"return 3")
    assert (
        "occurs 2 times in /testbed/a.py, at lines 3, 4"
        in edit(tool, "str_replace", old_str="return", new_str="x").error
    )
    missing = edit(tool, "str_replace", old_str="if a:\n    return 3", new_str="x")
    assert "does not occur" in missing.error
    assert "at lines 2" in missing.error
    assert "nothing was changed" in edit(tool, "str_replace", old_str="if a", new_str="if a").error
    assert "empty" in edit(tool, "str_replace", old_str="", new_str="x").error
    assert "needs the argument 'old_str'" in edit(tool, "str_replace").error
    tool, _ = editor({"/testbed/a.py": b"aaa\n"})
    assert "occurs 2 times" in edit(tool, "str_replace", old_str="aa", new_str="b").error, "they overlap"


@given(
    before=st.binary(max_size=30), old=st.text("xy \t\r\n", min_size=1, max_size=8), new=st.text(max_size=8),
    after=st.binary(max_size=30),
)  # fmt: skip
def test_replacing_and_undoing_keep_every_other_byte(before: bytes, old: str, new: str, after: bytes) -> None:
    data = before + old.encode() + after
    assume(2 * data.count(b"\r\n") <= data.count(b"\n"))  # line endings have tests of their own
    tool, store = editor({"/testbed/a.py": data})
    if edit(tool, "str_replace", old_str=old, new_str=new).error:
        return
    assert store.files["/testbed/a.py"] == before + new.encode() + after
    assert edit(tool, "undo_edit").observation == "ok"
    assert store.files["/testbed/a.py"] == data


def test_insert_adds_text_after_the_line() -> None:
    tool, store = editor({"/testbed/a.py": b"1\n2"})
    edit(tool, "insert", insert_line=0, new_str="\ttop")
    edit(tool, "insert", insert_line=3, new_str="end\n\n")
    assert store.files["/testbed/a.py"] == b"\ttop\n1\n2\nend\n\n"
    assert "between 0 and 5" in edit(tool, "insert", insert_line=6, new_str="x").error
    edit(tool, "undo_edit")
    edit(tool, "undo_edit")
    assert store.files["/testbed/a.py"] == b"1\n2"
    assert "no edit" in edit(tool, "undo_edit").error


def test_create_refuses_existing_files_and_can_be_undone() -> None:
    tool, store = editor({"/testbed/a.py": SOURCE})
    assert "already exists" in edit(tool, "create", file_text="x").error
    edit(tool, "create", "/testbed/new/b.py", file_text="  x\r\n")
    assert store.files["/testbed/new/b.py"] == b"  x\r\n"
    edit(tool, "undo_edit", "new/b.py")
    assert set(store.files) == {"/testbed/a.py"}


def test_full_style_explains_and_shows_the_edit() -> None:
    tool, _ = editor({"/testbed/a.py": SOURCE}, "full", 1)
    shown = edit(tool, "str_replace", old_str="if a:", new_str="if not a:").observation
    assert shown.startswith(
        "Edited /testbed/a.py. Lines 1-3 now read:\n    1  def f(a):\n    2      if not a:"
    )
    assert edit(tool, "view", view_range=[4, 4]).observation.startswith(
        "Content of /testbed/a.py, lines 4-4 of 4:"
    )


def test_view_handles_missing_binary_and_undecodable_files() -> None:
    tool, _ = editor({"/testbed/b": b"\0\1", "/testbed/l": b"caf\xe9\n", "/testbed/empty": b""})
    assert edit(tool, "view", "nope").error == "/testbed/nope does not exist"
    assert "binary" in edit(tool, "view", "b").error
    assert edit(tool, "view", "l").observation == "    1  caf\ufffd"
    assert edit(tool, "view", "empty").observation == ""


class RealShell:
    """Shell that runs commands in a folder of this machine."""

    timeout_s = 240.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def run(self, command: str | list[str], *, split: bool = False) -> CommandResult:
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else command
        done = await asyncio.to_thread(
            subprocess.run, argv, cwd=self.folder, timeout=self.timeout_s, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE if split else subprocess.STDOUT,
        )  # fmt: skip
        errors = done.stderr.decode() if split else ""
        return CommandResult(exit_code=done.returncode, output=done.stdout.decode(), errors=errors)


async def test_r2e_gym_style_separates_stderr_and_keeps_both_ends_of_outputs(
    tmp_path: Path,
) -> None:
    tool = ExecuteBash(RealShell(tmp_path), style="r2e_gym")
    assert (await tool.run({"cmd": "echo out; echo err >&2"})).observation == (
        "Exit code: 0\nExecution output of [execute_bash]:\n[STDOUT]\n\nout \n\n[STDERR]\n\nerr"
    )
    assert (await tool.run({"cmd": "echo out; exit 3"})).observation == (
        "Exit code: Error: Exit code 3\nExecution output of [execute_bash]:\nError executing command:\n\n"
        "[STDOUT]\n\nout \n\n[STDERR]\n\n"
    )
    result = await tool.run({"cmd": "seq 200; echo err >&2"})
    lines = result.observation.split("\n")
    assert (len(lines), lines[4], lines[-1]) == (2 + 40 + 1 + 40, "1", "err")
    assert result.truncated_chars > 0


class Late:
    """A shell in which every command reaches its time limit."""

    timeout_s = 0.5

    async def run(self, command: str | list[str], *, split: bool = False) -> CommandResult:
        return CommandResult(exit_code=None, output="early\n")


async def test_timed_out_commands_keep_their_earlier_output() -> None:
    late = await ExecuteBash(Late(), style="r2e_gym").run({"cmd": "make"})
    assert late.observation.startswith("Exit code: -1\n")
    assert "stopped after 0.5 s" in late.error
    assert "early" in late.observation
    late = await ExecuteBash(Late()).run({"cmd": "make"})
    assert "stopped after 0.5 s" in late.observation
    assert "early" in late.observation
    assert late.exit_code is None


async def test_bash_shows_the_exit_code_and_condenses_output(tmp_path: Path) -> None:
    tool = ExecuteBash(RealShell(tmp_path), style="compact")
    result = await tool.run({"cmd": "printf '\\033[31mred\\033[0m'; exit 3"})
    assert (result.observation, result.exit_code) == ("Exit code: 3\nred", 3)
    result = await tool.run({"cmd": "seq 1 200"})
    lines = result.observation.split("\n")
    left_out = sum(len(str(n)) + 1 for n in range(41, 162))
    assert lines[1:41] == [str(n) for n in range(1, 41)]
    assert lines[41] == f"[121 lines, {left_out} characters left out]"
    assert lines[42:] == [*(str(n) for n in range(162, 201)), ""]
    assert result.truncated_chars == left_out
    assert (await tool.run({"cmd": " "})).error == "the command is empty"
    assert "longer than" in (await tool.run({"cmd": "x" * 200_000})).error


async def test_search_in_a_folder_counts_lines_per_file(tmp_path: Path) -> None:
    for name, text in {
        "a.py": "x.y\nx.y x.y\nxzy\n", "d/b.py": "x.y\n", "c.txt": "x.y\n", ".hid/a.py": "x.y\n", "e.py": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    tool = Search(RealShell(tmp_path), workdir=str(tmp_path), style="compact")
    assert (await tool.run({"search_term": "x.y"})).observation == f"{tmp_path}/a.py: 2\n{tmp_path}/d/b.py: 1"
    everywhere = await tool.run({"search_term": "x.y", "python_only": False})
    assert f"{tmp_path}/c.txt: 1" in everywhere.observation
    assert "No line" in (await tool.run({"search_term": "absent"})).observation
    assert "does not exist" in (await tool.run({"search_term": "x", "path": "nope"})).error
    assert "one non-empty line" in (await tool.run({"search_term": ""})).error


async def test_search_in_a_file_returns_matching_lines(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x.y\nz\nxzy\n")
    tool = Search(RealShell(tmp_path), workdir=str(tmp_path), style="compact")
    assert (await tool.run({"search_term": "x.y", "path": "a.py"})).observation == "1:x.y\n3:xzy"
    assert "No line" in (await tool.run({"search_term": "-q", "path": "a.py"})).observation
    assert "not a grep pattern" in (await tool.run({"search_term": "\\(", "path": "a.py"})).error


async def test_search_refuses_too_many_files(tmp_path: Path) -> None:
    for n in range(101):
        (tmp_path / f"f{n}.py").write_text("same\n")
    tool = Search(RealShell(tmp_path), workdir=str(tmp_path))
    assert "more specific" in (await tool.run({"search_term": "same"})).error
    (tmp_path / "f0.py").unlink()
    assert not (await tool.run({"search_term": "same"})).error


@pytest.mark.parametrize("length", [9, 10, 11, 25])
def test_capping_keeps_head_and_tail_and_counts_the_rest(length: int) -> None:
    text = "".join(chr(97 + n % 26) for n in range(length))
    shown, cut = cap_characters(text, 10)
    assert cut == max(0, length - 10)
    assert shown == (text if not cut else f"{text[:5]}\n[{cut} characters left out]\n{text[-5:]}")
