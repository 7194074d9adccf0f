"""Edits of literals that certainly change their value, and look as if the author had written them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engine.grading.counterfactual.python.constants import Constants, certainly_differ
from engine.grading.counterfactual.python.operands import EXACT, Tolerance
from engine.grading.counterfactual.python.source import PythonSource
from engine.python_syntax import parse_python

Edit = tuple[int, int, str]
"""First byte, byte after the last, text instead."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}(?![A-Za-z]|://)")
_SHARED = re.compile(r"\w{3,}")
_MIN_WORD = 3
_REPEATED = 6
_BUILD = re.compile(r"(?<=\w)[^\w\n]{0,3}[+#;?]")
"""Beginning of what versions, addresses and header fields may leave out of a comparison."""
_MAX_TRIES = 20
_LONG = 4000
_MAX_LEAVES = 40
_MAX_LEAVES_OF_LONG = 3
"""The whole operand is parsed again for every edit."""
_MAX_WORDS = 4
_MAX_MENTION = 40
_NO_CONSTANTS = Constants(ast.Module(body=[], type_ignores=[]))


@dataclass(frozen=True, slots=True)
class LiteralEdit:
    """An edit of a literal.

    Args:
        edit: the edit.
        doubt: how much the new value stands out, from 0.
    """

    edit: Edit
    doubt: int


@dataclass(frozen=True, slots=True)
class Shown:
    """Literals of an assertion, of which a changed one may be the only slip.

    Args:
        places: identity of each literal.
        values: how often each is written.
        words: how often each word is written.
    """

    places: frozenset[int]
    values: Counter[str]
    words: Counter[str]

    @classmethod
    def of(cls, node: ast.AST) -> Shown:
        """Return the literals below a node."""
        found = [one for one in ast.walk(node) if isinstance(one, ast.Constant)]
        values = [_shown(one.value) for one in found]
        words = (word for value in values for word in _words(value))
        return cls(frozenset(map(id, found)), Counter(values), Counter(words))

    def doubt(self, leaf: ast.Constant, replacement: str) -> int:
        """Return how clearly the other literals tell that one was edited."""
        value, own = _shown(leaf.value), id(leaf) in self.places
        if len(value) >= _MIN_WORD and self.values[value] > own:
            return _REPEATED
        gone = _words(value) - _words(replacement)
        return 2 * any(self.words[word] > own for word in gone)


def _shown(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _words(text: str) -> set[str]:
    return set(_SHARED.findall(text))


def literal_edits(
    source: PythonSource,
    operand: ast.expr,
    *,
    beside: Shown,
    around: str = "",
    tolerance: Tolerance = EXACT,
) -> list[LiteralEdit]:
    """Return edits of an operand of ``==``, the least conspicuous first.

    Each makes every value equal to the operand unequal. Constants are edited, also inside of containers and
    of constant expressions. Letters become other letters or words and digits other digits, so that values
    differ as well where comparisons ignore case, white space or the notation of a number.

    Args:
        beside: literals of the assertion.
        around: text of the test, in which the true value may be mentioned again.
        tolerance: how near numbers may be and count as equal.
    """
    start, text = source.start(operand), source.content[source.start(operand) : source.end(operand)]
    known = _known(source.constants, operand)
    found: list[LiteralEdit] = []
    leaves = list(_leaves(operand, constant=known is not None))
    most = _MAX_LEAVES if len(text) < _LONG else _MAX_LEAVES_OF_LONG
    for leaf in reversed(leaves[-most:]):
        mentions = _mentions(leaf, around)
        for replacement, doubt in _replacements(source, leaf, tolerance):
            first, last = source.start(leaf), source.end(leaf)
            after = text[: first - start] + replacement.encode() + text[last - start :]
            changed = _known_text(source.constants, after.decode())
            if (known is None) != (changed is None):
                continue
            if known is not None and not certainly_differ(known, changed):
                continue
            stands_out = doubt + _disorder(known, changed) + mentions + beside.doubt(leaf, replacement)
            found.append(LiteralEdit((first, last, replacement), stands_out))
    return sorted(found, key=lambda one: one.doubt)


def _known(constants: Constants, node: ast.expr) -> Any:
    try:
        return constants.value(node)
    except ValueError:
        return None


def _known_text(constants: Constants, text: str) -> Any:
    try:
        expression = parse_python(f"({text}\n)").body[0]
    except ValueError:
        return None
    return _known(constants, expression.value) if isinstance(expression, ast.Expr) else None


def _leaves(node: ast.expr, *, constant: bool) -> Iterator[ast.Constant]:
    """Yield the constants that decide alone whether the whole is equal."""
    match node:
        case ast.Constant():
            yield node
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as number):
            yield number
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            if not any(isinstance(element, ast.Starred) for element in elements):
                for element in elements:
                    yield from _leaves(element, constant=constant)
        case ast.Set(elts=elements) if constant:
            for element in elements:
                yield from _leaves(element, constant=constant)
        case ast.Dict(keys=keys, values=values):
            known = {key.value for key in keys if isinstance(key, ast.Constant)}
            if len(known) == len(keys):  # no key hides another one's value
                for value in values:
                    yield from _leaves(value, constant=constant)
        case ast.BinOp(left=left, right=right) if constant:
            yield from _leaves(left, constant=constant)
            yield from _leaves(right, constant=constant)
        case ast.Call(func=function, args=args, keywords=keywords) if constant:
            if isinstance(function, ast.Attribute):
                yield from _leaves(function.value, constant=constant)
            for argument in (*args, *(keyword.value for keyword in keywords)):
                yield from _leaves(argument, constant=constant)


def _replacements(
    source: PythonSource, leaf: ast.Constant, tolerance: Tolerance
) -> Iterator[tuple[str, int]]:
    text = source.text(leaf)
    match leaf.value:
        case bool():
            yield str(not leaf.value), 0
        case int() | float():
            yield from _other_numbers(text, leaf.value, tolerance)
        case str() | bytes():
            yield from _other_texts(text, leaf.value, source.words)


def _other_numbers(text: str, value: float, tolerance: Tolerance) -> Iterator[tuple[str, int]]:
    """Yield numbers near a number, the first as round as it is: its last digits other than 0 are changed."""
    mantissa = re.split(r"(?<!0x)[eEjJ]", text)[0] if not text.lower().startswith("0x") else text
    digits = [found.start() for found in re.finditer(r"[0-9]", mantissa)]
    if text[:2].lower() in ("0x", "0o", "0b"):
        digits = digits[1:]
    for place in [place for place in reversed(digits) if text[place] != "0"] or digits[:1]:
        others = [f"{text[:place]}{other}{text[place + 1 :]}" for other in _neighbours(text[place])]
        new = {other: _known_text(_NO_CONSTANTS, other) for other in others}
        certain = [
            it
            for it in others
            if certainly_differ(value, new[it])
            and abs(new[it] - value) > 3 * tolerance.of(max(value, new[it], key=abs))
        ]
        if certain:
            yield from ((other, 0) for other in certain)
            if text.isdecimal() and tolerance == EXACT:  # on both sides of it
                nearest = [str(int(value) + step) for step in (1, -1, 2)]
                yield from ((other, 1) for other in nearest if other not in certain)
            return


def _neighbours(digit: str) -> tuple[str, ...]:
    if digit == "0":
        return ("1", "2")
    number = int(digit)
    return tuple(str(other) for other in (number + 1, number - 1) if 1 <= other <= 9)


def _other_texts(text: str, value: str | bytes, words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the string literal with another digit, word or letter, or with one letter more."""
    yield from ((changed, 0) for changed in _with_other_digit(text, value))
    yield from ((changed, 1) for changed in _with_other_word(text, value, words))
    for place in _places(text):
        if text[place].isascii() and text[place].isalpha():
            changed = f"{text[:place]}{_next_letter(text[place])}{text[place + 1 :]}"
            if _differ_by_one(value, _known_text(_NO_CONSTANTS, changed)):
                yield changed, 3
                return
    if not value:
        for place in _places(text):
            changed = f"{text[:place]}{words[0]}{text[place:]}"
            new = _known_text(_NO_CONSTANTS, changed)
            if new in (words[0], words[0].encode()) and type(new) is type(value):
                yield changed, 3
                return


def _with_other_digit(text: str, value: str | bytes) -> Iterator[str]:
    for place in _places(text):
        if not text[place].isdigit() or not text[place].isascii():
            continue
        for digit in _neighbours(text[place]):
            changed = f"{text[:place]}{digit}{text[place + 1 :]}"
            if _differ_by_one(value, _known_text(_NO_CONSTANTS, changed)):
                yield changed
        return


def _with_other_word(text: str, value: str | bytes, words: Sequence[str]) -> Iterator[str]:
    """Yield the string literal with one of its last words replaced by another one of the file."""
    plain = value if isinstance(value, str) else value.decode("latin-1")
    for found in reversed(list(_WORD.finditer(text[: _significant(text)]))[-_MAX_WORDS:]):
        old = found[0]
        others = [word for word in words if word.casefold() != old.casefold() and word not in plain.lower()]
        near = sorted((abs(len(word) - len(old)), at, word) for at, word in enumerate(others))
        for _, _, other in near[:2]:
            new = other.upper() if old.isupper() else other.capitalize() if old[0].isupper() else other
            changed = f"{text[: found.start()]}{new}{text[found.end() :]}"
            if _has_other_word(value, _known_text(_NO_CONSTANTS, changed), old, new):
                yield changed


def _has_other_word(old: str | bytes, new: Any, word: str, other: str) -> bool:
    """Return whether two strings are the same but for one place, which has another word."""
    if type(new) is not type(old):
        return False
    before, after = (one if isinstance(one, str) else one.decode("latin-1") for one in (old, new))
    return any(
        f"{before[: found.start()]}{other}{before[found.end() :]}" == after
        for found in re.finditer(re.escape(word), before)
    )


def _places(text: str) -> range:
    """Return the places to try, from the end: escapes and prefixes make some of them useless."""
    last = _significant(text) - 1
    return range(last, max(-1, last - _MAX_TRIES), -1)


def _significant(text: str) -> int:
    """Return the length of a string literal's part that every comparison of its kind counts."""
    prefix = len(text) - len(text.lstrip("bBrRuU"))
    found = _BUILD.search(text, prefix)
    return found.start() if found is not None else len(text)


def _next_letter(letter: str) -> str:
    other = _LETTERS[(_LETTERS.index(letter.lower()) + 1) % 26]
    return other.upper() if letter.isupper() else other


def _differ_by_one(old: str | bytes, new: Any) -> bool:
    if type(new) is not type(old) or len(new) != len(old):
        return False
    places = [place for place in range(len(old)) if old[place] != new[place]]
    return len(places) == 1 and _is_plain(old[places[0]]) and _is_plain(new[places[0]])


def _is_plain(character: str | int) -> bool:
    shown = character if isinstance(character, str) else chr(character)
    return shown.isascii() and shown.isalnum()


def _mentions(leaf: ast.Constant, text: str) -> int:
    """Return how often a constant is mentioned in a text beyond its own place, at most 3 times."""
    shown = _shown(leaf.value)
    if not shown or len(shown) > _MAX_MENTION:
        return 0
    count = len(re.findall(rf"(?<!\w){re.escape(shown)}(?!\w)", text))
    return min(3, max(0, count - 1))


def _disorder(old: Any, new: Any) -> int:
    """Return how much less regular a container became: no longer sorted, equal or distinct elements."""
    if not isinstance(old, list | tuple) or len(old) < 2:
        return 0
    if all(isinstance(one, list | tuple | dict) for one in old):
        return max((_disorder(before, after) for before, after in zip(old, new, strict=True)), default=0)
    return sum(2 for regular in (_is_sorted, _is_uniform, _is_distinct) if regular(old) and not regular(new))


def _is_sorted(values: Sequence[Any]) -> bool:
    try:
        return all(one <= other for one, other in pairwise(values))
    except TypeError:
        return False


def _is_uniform(values: Sequence[Any]) -> bool:
    return all(one == values[0] for one in values)


def _is_distinct(values: Sequence[Any]) -> bool:
    return all(one not in values[:at] for at, one in enumerate(values))
