"""Endless stream of warm-start episodes: faults in real Python files, fixed through the real tools.

Sources are the standard library and the installed packages; source packages of tasks are excluded,
files are split into training and held-out, functions are de-duplicated. Statement, conversation,
tools and rendering are those of rollouts, so the warm start cannot drift from later training.
To add a kind of episode: another branch in ``EpisodeMaker.episode``.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
import sysconfig
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from engine.agent.token_conversation import TokenConversation
from engine.datasets.curation.faults import Fault, apply_fault, enumerate_faults
from engine.datasets.curation.statements import Hint, problem_statement
from engine.inference.base import Generation
from engine.models.chat.base import Chat
from engine.tools import FileEditor, MemoryFileStore, run_immediately
from engine.tools.rendering import render_response
from engine.trainer.sft.statements import failing_tests, raised_exception
from engine.types import ToolCall

Split = Literal["train", "heldout"]

RESERVED_PACKAGES = (
    "boltons",
    "more_itertools",
    "cachetools",
    "toolz",
    "sortedcontainers",
    "wcmatch",
    "bracex",
    "backrefs",
    "funcy",
    "markdown",
    "mistune",
    "pyasn1",
    "pyrsistent",
)
"""Packages used by curated datasets: excluded from the stream, vendored copies included."""

WORKDIR = "/testbed"
_HELDOUT_SHARE = 25
_FILES_PER_PACKAGE = 600
_FUNCTIONS_PER_FILE = 16
_COMMON_CHARS = 700
"""Length in characters above which functions are sampled less often: they cost tokens and teach no more."""
_LONGEST_LINE = 100
_MAX_FILE_BYTES = 80_000
_TEST_PARTS = frozenset({"test", "tests", "testing", "idle_test", "idlelib"})
_WORD = re.compile(r"[A-Za-z_]{3,}")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file of the stream."""

    package: str
    name: str
    """Path below its library root, e.g. ``networkx/utils/heaps.py``."""
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One broken file and the turns that fix it."""

    statement: str
    path: str
    """Absolute path of the file in the agent's environment."""
    broken: str
    mended: str
    turns: tuple[tuple[str, str], ...]
    """Pairs of response text and the following observation; the last observation is empty."""
    faults: tuple[Fault, ...]
    hint: Hint
    body_key: int
    """Fingerprint of the original function's text."""


@dataclass(frozen=True, slots=True)
class EncodedEpisode:
    """Token ids of an episode, and a mask that is 1 where the policy would have sampled them."""

    ids: list[int]
    mask: list[int]
    body_key: int


def source_files(split: Split, *, excluded: Iterable[str] = ()) -> list[SourceFile]:
    """Return library files of a split, at most 600 per package, in a fixed order.

    Args:
        split: files are held out by a fingerprint of their name, about one in 25.
        excluded: further top-level packages to leave out, besides ``RESERVED_PACKAGES``.
    """
    banned = {name.replace("-", "_").lower() for name in (*RESERVED_PACKAGES, *excluded)}
    stdlib, purelib = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    files: list[SourceFile] = []
    for root, is_stdlib in ((stdlib, True), (purelib, False)):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            if is_stdlib and parts[0] == "site-packages":
                continue
            if banned & {part.lower() for part in parts} or _is_test(parts):
                continue
            name = "/".join(parts) + ".py"
            if (zlib.crc32(name.encode()) % _HELDOUT_SHARE == 0) == (split == "heldout"):
                files.append(SourceFile("stdlib" if is_stdlib else parts[0], name, path))
    files.sort(key=lambda file: (file.package, zlib.crc32(file.name.encode()), file.name))
    return [
        file for _, group in groupby(files, lambda f: f.package) for file in list(group)[:_FILES_PER_PACKAGE]
    ]


def _is_test(parts: Sequence[str]) -> bool:
    stem = parts[-1]
    return bool(_TEST_PARTS & set(parts)) or stem.startswith("test_") or stem.endswith(("_test", "conftest"))


HINTS: tuple[tuple[Hint, float], ...] = (("line", 0.86), ("function", 0.14))
"""Precision of problem statements in the stream, with weights."""


@dataclass(slots=True)
class EpisodeMaker:
    """Generator of episodes from source files.

    Args:
        rng: source of all randomness.
        max_edits: maximum number of faults per function.
        observation_chars: functions whose listing would be longer are skipped.
        hints: precision with which statements locate the symptom, with weights.
        kinds: fault kinds to use; empty is every kind.
        max_function_lines: longer functions are skipped.
    """

    rng: random.Random
    max_edits: int = 4
    observation_chars: int = 2000
    hints: tuple[tuple[Hint, float], ...] = HINTS
    kinds: Collection[str] = ()
    max_function_lines: int = 24
    _seen: set[int] = field(default_factory=set)
    _words: list[str] = field(default_factory=lambda: ["value", "item", "node"])

    def stream(self, files: Sequence[SourceFile]) -> Iterator[Episode]:
        """Yield episodes endlessly; every pass injects other faults, and skips copies of a function."""
        while True:
            self._seen.clear()
            order = list(files)
            self.rng.shuffle(order)
            for file in order:
                yield from self.file_episodes(file)

    def file_episodes(self, file: SourceFile) -> Iterator[Episode]:
        """Yield the episodes of one file, at most one per function."""
        source = _read(file.path)
        if source is None:
            return
        words = _WORD.findall(source)
        self._words = [*self._words[-2000:], *self.rng.sample(words, min(40, len(words)))]
        faults = [
            fault
            for fault in enumerate_faults(source, max_function_lines=self.max_function_lines)
            if not self.kinds or fault.kind in self.kinds
        ]
        functions = [
            list(group) for _, group in groupby(faults, lambda f: (f.function, f.function_first_line))
        ]
        self.rng.shuffle(functions)
        for offered in functions[:_FUNCTIONS_PER_FILE]:
            episode = self.episode(file.name, source, offered)
            if episode is not None:
                yield episode

    def episode(self, name: str, source: str, offered: Sequence[Fault]) -> Episode | None:
        """Return an episode of one function; None if unsuitable (too long, a copy, ambiguous lines).

        Args:
            name: the file's path below its library root.
            source: the file's text.
            offered: the function's possible faults.
        """
        first, last = offered[0].function_first_line, offered[0].function_last_line
        body = "\n".join(source.split("\n")[first - 1 : last])
        key = zlib.crc32(" ".join(body.split()).encode())
        if key in self._seen or len(body) + 7 * (last - first + 1) > self.observation_chars:
            return None
        if self.rng.random() > _COMMON_CHARS / max(len(body), 1):
            return None
        self._seen.add(key)
        if self.rng.random() < 0.25:
            source, offered = self._renamed(source, offered)
        hint = self.rng.choices([h for h, _ in self.hints], [w for _, w in self.hints])[0]
        broken, faults = self._inject(source, offered, hint)
        if not faults:
            return None
        path = self._placed(name)
        statement = problem_statement(
            path,
            faults[0].function,
            first,
            last,
            [(fault.line, fault.mutated) for fault in faults],
            failing_tests(self.rng, path, faults[0].function),
            raised_exception(self.rng),
            hint,
        )
        absolute = f"{WORKDIR}/{path}"
        turns = _play(absolute, broken, source, faults)
        if turns is None:
            return None
        return Episode(
            statement=statement,
            path=absolute,
            broken=broken,
            mended=source,
            turns=turns,
            faults=tuple(faults),
            hint=hint,
            body_key=key,
        )

    def _inject(self, source: str, offered: Sequence[Fault], hint: Hint) -> tuple[str, list[Fault]]:
        """Inject 1 … max_edits faults, each fixable by one edit of its stripped line.

        Without named lines a statement does not reveal the number of faults; there is then exactly one.
        """
        count = self.rng.choices(range(1, self.max_edits + 1), [0.34, 0.24, 0.22, 0.2][: self.max_edits])[0]
        if hint != "line":
            count = 1
        broken, chosen = source, list[Fault]()
        for fault in self._by_kind(offered):
            if len(chosen) == count:
                break
            if any(fault.line == other.line for other in chosen):
                continue
            candidate = apply_fault(broken, fault)
            if all(_mendable(candidate, f) for f in (*chosen, fault)):
                broken = candidate
                chosen.append(fault)
        return broken, sorted(chosen, key=lambda fault: fault.line)

    def _by_kind(self, offered: Sequence[Fault]) -> Iterator[Fault]:
        """Yield the faults in a random order in which frequent kinds do not crowd out rare ones."""
        kinds: dict[str, list[Fault]] = {}
        for fault in offered:
            kinds.setdefault(fault.kind, []).append(fault)
        for _ in range(4 * self.max_edits):
            names = list(kinds)
            kind = self.rng.choices(names, [len(kinds[name]) ** 0.5 for name in names])[0]
            yield self.rng.choice(kinds[kind])

    def _renamed(self, source: str, offered: Sequence[Fault]) -> tuple[str, list[Fault]]:
        """Rename one identifier of the function, so that the model learns to copy, not to memorise."""
        first, last = offered[0].function_first_line, offered[0].function_last_line
        lines = source.split("\n")
        counts: dict[str, int] = {}
        for fault in offered:
            if fault.kind == "wrong_variable":
                for word in set(_WORD.findall(fault.original)) & set(_WORD.findall(fault.mutated)):
                    counts[word] = counts.get(word, 0) + 1
        names = [word for word in counts if word.isidentifier() and word not in _KEYWORDS]
        new = "_".join(self.rng.sample(self._words, self.rng.choice((1, 1, 2)))).strip("_")
        if not names or not new.isidentifier() or new in source or new in _KEYWORDS:
            return source, list(offered)
        pattern = re.compile(rf"\b{self.rng.choice(names)}\b")
        lines[first - 1 : last] = [pattern.sub(new, line) for line in lines[first - 1 : last]]
        renamed = [
            replace(fault, original=pattern.sub(new, fault.original), mutated=pattern.sub(new, fault.mutated))
            for fault in offered
        ]
        return "\n".join(lines), [fault for fault in renamed if fault.original != fault.mutated]

    def _placed(self, name: str) -> str:
        """Return a realistic repository path: the last parts of the real one, sometimes below ``src``."""
        parts = name.split("/")
        kept = parts[-self.rng.choice((2, 2, 2, 2, 3)) :]
        prefix = self.rng.choices(("", "src/", "lib/"), (0.8, 0.16, 0.04))[0]
        return prefix + "/".join(kept)


def encode_episode(episode: Episode, chat: Chat) -> list[EncodedEpisode]:
    """Encode the episode as rolled out by a perfect policy: one part, and one more for every fork."""
    conversation = TokenConversation(chat, [{"role": "user", "content": episode.statement}])
    for step, (response, observation) in enumerate(episode.turns):
        ids = chat.reply_ids(response)
        zeros = (0.0,) * len(ids)
        sampled = Generation(ids=tuple(ids), logprobs=zeros, versions=(0,) * len(ids))
        conversation.append_generation(sampled, step=step)
        if step < len(episode.turns) - 1:
            answer = [{"role": "user", "content": observation}]
            conversation.append(conversation.continuation(answer), step=step)
    return [
        EncodedEpisode(list(sample.ids), list(sample.mask), episode.body_key)
        for sample in conversation.record().samples()
    ]


def editor(store: MemoryFileStore) -> FileEditor:
    """Return the file editor of the compact prompt's rollouts, over files in memory."""
    return FileEditor(store, workdir=WORKDIR, style="compact", snippet_lines=0)


def _play(path: str, broken: str, mended: str, faults: Sequence[Fault]) -> tuple[tuple[str, str], ...] | None:
    """View, fix each fault and finish, through the real editor.

    Returns None when that does not restore the file: an edit can recreate a copy of a later edit's line.
    """
    first, last = faults[0].function_first_line, faults[0].function_last_line
    view = {"command": "view", "path": path, "view_range": [first, last]}
    plan = [(f"look at lines {first}-{last}", ToolCall(name="file_editor", arguments=view))]
    for fault in faults:
        edit = {
            "command": "str_replace",
            "path": path,
            "old_str": fault.mutated.strip(),
            "new_str": fault.original.strip(),
        }
        plan.append((f"line {fault.line}: {fault.family}", ToolCall(name="file_editor", arguments=edit)))
    store = MemoryFileStore({path: broken.encode()})
    tool, turns = editor(store), list[tuple[str, str]]()
    for thought, call in plan:
        result = run_immediately(tool.run(call.arguments))
        turns.append((render_response(thought, call, "xml"), result.observation))
    if store.files[path] != mended.encode():
        return None
    finish = ToolCall(name="finish", arguments={"command": "submit"})
    return (*turns, (render_response("done", finish, "xml"), ""))


def _mendable(broken: str, fault: Fault) -> bool:
    old = fault.mutated.strip()
    new = fault.original.strip()
    plain = len(old) <= _LONGEST_LINE and "</parameter>" not in old + new
    return plain and new != old and broken.count(old) == 1


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\r" in text or "\f" in text else text


_KEYWORDS = frozenset((*keyword.kwlist, *dir(builtins), "self", "cls"))
