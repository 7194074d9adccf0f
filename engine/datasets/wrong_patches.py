"""Plausible wrong patches for a task: parts of its solution, and its solution with a fault near the change.

Tests that such patches pass are weak (arXiv:2606.16062). A patch may be right all the same, e.g. when a part
of the solution is a clean-up: the share of rejected patches compares tasks and versions of their tests.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain, zip_longest
from pathlib import PurePosixPath

from engine.datasets.curation.faults import Fault, apply_fault, enumerate_faults, trees_differ
from engine.datasets.paths import is_configuration, is_test_path
from engine.patches.apply import apply_patch
from engine.patches.diff import diff_trees
from engine.patches.trees import FileState, Tree
from engine.python_syntax import drop_docstrings, parse_python

PART, FAULT, ROLLOUT = "part", "fault", "rollout"
"""Kinds of wrong patches: a part of the solution, the solution with a fault, a failed rollout's patch."""
_MAX_FUNCTION_LINES = 200
_DOCUMENTS = (".md", ".rst", ".txt", ".adoc")
_NOTES = ("changes", "changelog", "news", "authors", "license", "licence")
"""Endings and beginnings of names of files without code."""


@dataclass(frozen=True, slots=True)
class WrongPatch:
    """A patch that probably does not solve its task.

    ``detail`` says what is wrong, in one line.
    """

    kind: str
    detail: str
    patch: str


@dataclass(frozen=True, slots=True)
class _Piece:
    """Contiguous change of one file: its lines ``old`` become ``new`` of the solved version."""

    path: str
    old: slice
    new: slice

    def __str__(self) -> str:
        first, last = self.new.start + 1, max(self.new.start + 1, self.new.stop)
        return f"{self.path}:{first}" if first == last else f"{self.path}:{first}-{last}"


def wrong_patches(before: Tree, solution: str, *, limit: int, seed: str) -> list[WrongPatch]:
    """Return at most ``limit`` different wrong patches, the same for the same arguments.

    Parts and faults alternate; faults on changed lines come first. Code that is no Python has only parts.
    Changes of tests, documents and configuration are part of each patch: graders ignore or never read them.

    Args:
        before: the task's versions of the files that the solution changes.
        solution: the task's solution, a patch.
        limit: maximum number of patches.
        seed: of the order of faults.

    Raises:
        PatchError: the solution does not apply.
    """
    changes = apply_patch(before, solution)
    after = changes.applied_to(before)
    code = [path for path in changes.paths if _is_code(path)]
    pieces = [piece for path in code for piece in _pieces(before.get(path), after.get(path), path)]
    unsolved = {path: before[path] for path in code if path in before}
    unsolved |= {path: state for path, state in after.items() if path not in code}
    candidates = zip_longest(
        _parts(unsolved, after, pieces), _faulty(before, after, pieces, random.Random(seed))
    )
    patches: dict[str, WrongPatch] = {}
    for kind, detail, tree in filter(None, chain.from_iterable(candidates)):
        if len(patches) >= limit:
            break
        patch = diff_trees(before, tree)
        if patch:
            patches.setdefault(patch, WrongPatch(kind, detail, patch))
    return list(patches.values())


def _is_code(path: str) -> bool:
    name = PurePosixPath(path.lower()).name
    is_document = name.endswith(_DOCUMENTS) or name.startswith(_NOTES)
    return not (is_document or is_test_path(path) or is_configuration(path))


def _pieces(before: FileState | None, after: FileState | None, path: str) -> Iterator[_Piece]:
    old, new = _lines(before), _lines(after)
    if old is None or new is None:
        return
    for change, i, j, k, m in SequenceMatcher(a=old, b=new).get_opcodes():
        if change != "equal":
            yield _Piece(path, slice(i, j), slice(k, m))


def _lines(state: FileState | None) -> list[str] | None:
    """Return the lines of a file, none where it does not exist; None for a binary file."""
    try:
        return state.data.decode().split("\n") if state is not None else []
    except UnicodeDecodeError:
        return None


def _parts(before: Tree, after: Tree, pieces: Sequence[_Piece]) -> Iterator[tuple[str, str, Tree]]:
    """Yield the solution without one of its pieces, each piece alone, and halves of a single one."""
    if len(pieces) == 1:
        yield from _halves(before, after, pieces[0])
        return
    for left in pieces:
        tree = _with(before, after, [piece for piece in pieces if piece is not left])
        if tree is not None:
            yield PART, f"the solution without {left}", tree
    if len(pieces) > 2:
        for piece in pieces:
            tree = _with(before, after, [piece])
            if tree is not None:
                yield PART, f"only {piece} of the solution", tree


def _halves(before: Tree, after: Tree, piece: _Piece) -> Iterator[tuple[str, str, Tree]]:
    middle = (piece.new.start + piece.new.stop) // 2
    for half in (slice(piece.new.start, middle), slice(middle, piece.new.stop)):
        if half.start < half.stop and half != piece.new:
            part = _Piece(piece.path, piece.old, half)
            tree = _with(before, after, [part])
            if tree is not None:
                yield PART, f"only {part} of the solution", tree


def _with(before: Tree, after: Tree, pieces: Sequence[_Piece]) -> Tree | None:
    """Return the tree with some pieces of the solution; None if it is no code, or the solution's code."""
    tree = dict(before)
    of_path = defaultdict(list)
    for piece in pieces:
        of_path[piece.path].append(piece)
    for path, chosen in of_path.items():
        if path not in after:
            del tree[path]
            continue
        old, new = _lines(before.get(path)) or [], _lines(after[path]) or []
        for piece in reversed(chosen):
            old[piece.old] = new[piece.new]
        tree[path] = after[path]._replace(data="\n".join(old).encode())
    return tree if _is_other_code(tree, after) else None


def _is_other_code(tree: Tree, solved: Tree) -> bool:
    """Return whether every Python file parses, and the code of some file differs from the solution's."""
    differs = False
    for path in {*tree, *solved}:
        one, other = tree.get(path), solved.get(path)
        if one is not None and one.same(other):
            continue
        if one is None or other is None or not path.endswith(".py"):
            differs = True
            continue
        try:
            code = [drop_docstrings(parse_python(state.data)) for state in (one, other)]
        except ValueError:
            return False
        differs = differs or trees_differ(*code)
    return differs


def _faulty(
    before: Tree, after: Tree, pieces: Sequence[_Piece], draw: random.Random
) -> Iterator[tuple[str, str, Tree]]:
    """Yield the solution with a fault in a function that it changes, on its changed lines first."""
    near: list[tuple[str, Fault]] = []
    beside: list[tuple[str, Fault]] = []
    for path in dict.fromkeys(piece.path for piece in pieces if piece.path.endswith(".py")):
        if path not in after:
            continue
        lines = {line for piece in pieces if piece.path == path for line in _touched_lines(piece)}
        source = after[path].data.decode()
        for fault in enumerate_faults(source, max_function_lines=_MAX_FUNCTION_LINES, lines=lines):
            (near if fault.line in lines else beside).append((path, fault))
    for path, fault in chain(_spread(near, draw), _spread(beside, draw)):
        data = apply_fault(after[path].data.decode(), fault).encode()
        if path in before and before[path].data == data:
            continue  # the fault of the task itself
        place = f"{fault.kind.replace('_', ' ')} in {fault.function}, {path}:{fault.line}"
        detail = f"{place}: {fault.mutated.strip()}"
        yield FAULT, detail, {**after, path: after[path]._replace(data=data)}


def _touched_lines(piece: _Piece) -> range:
    """Return the lines of the solved file that a piece adds or changes, counted from 1."""
    return range(piece.new.start + 1, max(piece.new.stop, piece.new.start + 1) + 1)


def _spread(faults: Sequence[tuple[str, Fault]], draw: random.Random) -> list[tuple[str, Fault]]:
    """Return faults in a random order in which their kinds alternate."""
    by_kind: defaultdict[str, list[tuple[str, Fault]]] = defaultdict(list)
    for item in draw.sample(faults, len(faults)):
        by_kind[item[1].kind].append(item)
    rounds = zip_longest(*by_kind.values())
    return [item for group in rounds for item in group if item is not None]
