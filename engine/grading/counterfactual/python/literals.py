"""Edits of literals that certainly change their value: what equals the one cannot equal the other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from engine.grading.counterfactual.python.source import PythonSource, parse

Edit = tuple[int, int, str]
"""First byte, byte after the last, text instead."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MIN_CHANGE = 1e-3
_MAX_TRIES = 20


def literal_edits(source: PythonSource, operand: ast.expr) -> Iterator[Edit]:
    """Yield edits of an operand of ``==``; each makes every value equal to it unequal.

    Constants are edited, also inside of tuples, lists, sets and dictionaries, where each decides alone
    whether the whole is equal. Letters become other letters and leading digits other digits, so that values
    differ as well where comparisons ignore case, white space or the notation of a number.
    """
    start, text = source.start(operand), source.content[source.start(operand) : source.end(operand)]
    known = _value(text.decode())
    for leaf in _leaves(operand):
        edit = _edit(source, leaf)
        if edit is None:
            continue
        after = text[: edit[0] - start] + edit[2].encode() + text[edit[1] - start :]
        changed = _value(after.decode())
        if (known is None) == (changed is None) and (known is None or known != changed):
            yield edit


def is_literal(node: ast.expr) -> bool:
    """Return whether a node is made of literals alone."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _leaves(node: ast.expr) -> Iterator[ast.Constant]:
    match node:
        case ast.Constant():
            yield node
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as number):
            yield number
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            if not any(isinstance(element, ast.Starred) for element in elements):
                for element in elements:
                    yield from _leaves(element)
        case ast.Set(elts=elements):
            if is_literal(node) and len(ast.literal_eval(node)) == len(elements):
                for element in elements:
                    yield from _leaves(element)
        case ast.Dict(keys=keys, values=values):
            known = {key.value for key in keys if isinstance(key, ast.Constant)}
            if len(known) == len(keys):  # no key hides another one's value
                for value in values:
                    yield from _leaves(value)


def _edit(source: PythonSource, leaf: ast.Constant) -> Edit | None:
    text = source.text(leaf)
    match leaf.value:
        case bool():
            changed: str | None = str(not leaf.value)
        case int() | float():
            changed = _other_number(text, leaf.value)
        case str() | bytes():
            changed = _other_text(text, leaf.value)
        case _:
            changed = None
    return None if changed is None else (source.start(leaf), source.end(leaf), changed)


def _other_number(text: str, value: float) -> str | None:
    """Return the number with its leading digit changed, or with its last one where it is a short integer."""
    short = isinstance(value, int) and len(text) <= 2
    digits = [found.start() for found in re.finditer(r"[0-9]", text)]
    if text[:2].lower() in ("0x", "0o", "0b"):
        digits = digits[1:]
    wanted = [place for place in digits if text[place] != "0"] or digits
    if not wanted:
        return None
    place = digits[-1] if short else wanted[0]
    digit = text[place]
    for other in ("1", "2", "3", "7") if digit == "0" else _neighbours(digit):
        changed = f"{text[:place]}{other}{text[place + 1 :]}"
        new = _value(changed)
        if isinstance(new, int | float) and type(new) is type(value) and abs(new - value) > _MIN_CHANGE:
            return changed
    return None


def _neighbours(digit: str) -> tuple[str, ...]:
    number = int(digit)
    return tuple(str(other) for other in (number + 1, number - 1, number + 3) if 1 <= other <= 9)


def _other_text(text: str, value: str | bytes) -> str | None:
    """Return the string literal with one letter or digit changed, or with one letter more."""
    for place in _places(text):
        character = text[place]
        if not (character.isascii() and character.isalnum()):
            continue
        changed = f"{text[:place]}{_other_character(character)}{text[place + 1 :]}"
        if _differ_by_one(value, _value(changed)):
            return changed
    for place in _places(text):
        changed = f"{text[:place]}x{text[place:]}"
        if _has_one_more(value, _value(changed)):
            return changed
    return None


def _places(text: str) -> range:
    """Return the places to try, from the end: escapes and prefixes make some of them useless."""
    return range(len(text) - 1, max(0, len(text) - 1 - _MAX_TRIES), -1)


def _other_character(character: str) -> str:
    if character.isdigit():
        return str((int(character) + 3) % 10)
    other = _LETTERS[(_LETTERS.index(character.lower()) + 3) % 26]
    return other.upper() if character.isupper() else other


def _differ_by_one(old: str | bytes, new: object) -> bool:
    if type(new) is not type(old) or not isinstance(new, str | bytes) or len(new) != len(old):
        return False
    places = [place for place in range(len(old)) if old[place] != new[place]]
    return len(places) == 1 and _is_plain(old[places[0]]) and _is_plain(new[places[0]])


def _is_plain(character: str | int) -> bool:
    shown = character if isinstance(character, str) else chr(character)
    return shown.isascii() and shown.isalnum()


def _has_one_more(old: str | bytes, new: object) -> bool:
    if isinstance(old, str):
        return (
            isinstance(new, str) and len(new) == len(old) + 1 and new.replace("x", "") == old.replace("x", "")
        )
    return isinstance(new, bytes) and len(new) == len(old) + 1


def _value(text: str) -> object | None:
    """Return the value of a literal's text; None where it is not made of literals alone."""
    try:
        expression = parse(f"({text}\n)").body[0]
        return ast.literal_eval(expression.value) if isinstance(expression, ast.Expr) else None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
