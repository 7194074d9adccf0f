"""Edits of literals that certainly change their value and keep type, length and notation.

Node types are those of the grammars of JavaScript, TypeScript, Go, Java and Rust.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tree_sitter import Node

_NUMBERS = frozenset({
    "number", "int_literal", "float_literal", "decimal_integer_literal", "hex_integer_literal",
    "octal_integer_literal", "binary_integer_literal", "decimal_floating_point_literal", "integer_literal",
})  # fmt: skip
_TEXTS = frozenset({
    "string", "template_string", "interpreted_string_literal", "raw_string_literal", "rune_literal",
    "string_literal", "character_literal", "char_literal",
})  # fmt: skip
_BOOLEANS = frozenset({"true", "false", "boolean_literal"})
_CHARACTERS = frozenset({"rune_literal", "character_literal", "char_literal"})
_ESCAPE = re.compile(
    r"\\(?:u\{[^}]*\}|u+[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL
)
_QUOTED = re.compile(r"(b?r?#*|c|)(\"\"\"|\"|'|`)(.*)(\2)(#*)", re.DOTALL)
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[0-9][0-9_]*)([a-zA-Z]\w*|)")
_FLOAT = re.compile(r"([0-9_]*\.?[0-9_]*)([eE][+-]?[0-9_]+)?_?([fFdD]|f32|f64)?")
_MAX_WORDS = 400
_MAX_DIGITS = 15
"""Beyond that, neighbours may be the same floating-point number."""
_LARGEST = frozenset(2**bits - extra for bits in (7, 8, 15, 16, 31, 32) for extra in (0, 1))
"""Largest and smallest integers of narrow types, beyond which a program does not compile."""
_REST = re.compile(r"(?<=.)[+#;?].*", re.DOTALL)
_VOWELS, _CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"
_WORD = re.compile(r"[A-Za-z]{3,}")
_OTHER_WORDS = {
    "function": "object", "object": "function", "undefined": "object", "string": "number", "number": "string",
    "boolean": "string", "symbol": "string", "true": "false", "false": "true", "null": "true",
    "GET": "POST", "POST": "GET", "PUT": "POST", "DELETE": "PUT", "PATCH": "PUT",
}  # fmt: skip
"""Words with a closed set of alternatives: a misspelt one would stand out."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of the bytes from ``start`` to ``end``."""

    start: int
    end: int
    text: str
    before: str = ""
    """Value of the edited literal, without quotes; empty for other edits."""
    after: str = ""


def is_literal(node: Node) -> bool:
    """Return whether a node is a number, a text without substitutions, or a boolean."""
    if node.type in _TEXTS:
        return all("substitution" not in child.type for child in node.children)
    return node.type in _NUMBERS or node.type in _BOOLEANS


def is_text(node: Node) -> bool:
    """Return whether a node is a string literal."""
    return node.type in _TEXTS and node.type not in _CHARACTERS


def is_float(node: Node) -> bool:
    """Return whether a node is a number with a fraction or an exponent."""
    text = _source(node)
    return (
        node.type in _NUMBERS and not text.lower().startswith("0x") and re.search(r"[.eE]", text) is not None
    )


def value_of(node: Node) -> str:
    """Return the text of a literal without its quotes."""
    found = _QUOTED.fullmatch(_source(node)) if node.type in _TEXTS else None
    return found[3] if found else _source(node)


def words_of(content: bytes) -> tuple[str, ...]:
    """Return the words of a file, each once, the most frequent first."""
    counts = Counter(_WORD.findall(content.decode("utf-8", "replace")))
    return tuple(word for word, _ in counts.most_common(_MAX_WORDS))


def literal_edit(node: Node, words: Sequence[str] = (), shift: int = 0) -> Edit | None:
    """Return the edit that gives a literal another value; None where none is certain.

    Args:
        words: words of the file, of which one may take another's place.
        shift: added to the node's positions, where it comes from a fragment that was parsed by itself.
    """
    text = _source(node)
    changed = None
    if node.type in _BOOLEANS:
        changed = "false" if text == "true" else "true"
    elif node.type in _NUMBERS:
        changed = _other_float(text) if is_float(node) else _other_integer(text)
    elif is_literal(node):
        changed = _other_character_literal(text) if node.type in _CHARACTERS else _other_text(text, words)
    if changed is None or changed == text:
        return None
    quoted = node.type in _TEXTS
    before, after = ((found[3] if (found := _QUOTED.fullmatch(one)) else one) if quoted else one
                     for one in (text, changed))  # fmt: skip
    return Edit(node.start_byte + shift, node.end_byte + shift, changed, before, after)


def number_of(node: Node) -> float | None:
    """Return the value of a decimal number; None for everything else."""
    try:
        return float(re.sub(r"_|[a-zA-Z]\w*$", "", _source(node)) if node.type in _NUMBERS else "")
    except ValueError:
        return None


def _source(node: Node) -> str:
    return node.text.decode() if node.text is not None else ""


def _other_integer(text: str) -> str | None:
    """Return a neighbour of an integer that fits into the same type."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    digits, suffix = found.groups()
    bare = digits.replace("_", "")
    base = 10 if bare.isdigit() and not (len(bare) > 1 and bare[0] == "0") else 0
    try:
        value = int(bare, base) if base else int(re.sub(r"^0(?=[0-7])", "0o", bare), 0)
    except ValueError:
        return None
    if len(bare) > _MAX_DIGITS:
        return None
    last = bare[-1].lower()
    down = value > 0 and (value in _LARGEST or last == "9" or (not base and last in "17f"))
    new = _next_digit(last, -1 if down and last != "0" else 1, bare)
    return None if new is None else f"{digits[:-1]}{new.upper() if digits[-1].isupper() else new}{suffix}"


def _next_digit(digit: str, step: int, number: str) -> str | None:
    alphabet = {"0x": "0123456789abcdef", "0b": "01"}.get(number[:2].lower(), "0123456789")
    if number[:1] == "0" and len(number) > 1 and number[1:2].lower() not in "xb":
        alphabet = "01234567"
    at = alphabet.find(digit) + step
    return alphabet[at] if 0 <= at < len(alphabet) else None


def _other_float(text: str) -> str | None:
    """Return a floating-point number with another leading digit: it differs beyond small tolerances."""
    found = _FLOAT.fullmatch(text)
    if found is None:
        return None
    mantissa = found[1]
    place = next((at for at, digit in enumerate(mantissa) if digit in "123456789"), None)
    if place is None:
        place = mantissa.find("0")
        return f"{mantissa[:place]}1{text[place + 1 :]}" if place >= 0 else None
    digit = int(mantissa[place])
    return f"{text[:place]}{digit - 1 if digit == 9 else digit + 1}{text[place + 1 :]}"


def _other_text(text: str, words: Sequence[str]) -> str | None:
    """Return a string literal with another digit, another word or another letter, else with a letter more."""
    found = _QUOTED.fullmatch(text)
    if found is None:
        return None
    opening, content, closing = found[1] + found[2], found[3], found[4] + found[5]
    if not content and words:
        return f"{opening}{words[len(words) // 3]}{closing}"
    if changed := other_content(content, words):
        return f"{opening}{changed}{closing}"
    return f"{opening}{content}a{closing}"


def _other_character_literal(text: str) -> str | None:
    found = re.fullmatch(r"(b?')([A-Za-z0-9])'", text)
    return f"{found[1]}{_other_character(found[2])}'" if found else None


def other_content(content: str, words: Sequence[str] = ()) -> str:
    """Return a text with another digit, word or letter; empty where it has none outside of escapes.

    The part before ``+``, ``#``, ``;`` or ``?`` comes first: comparisons may ignore what follows.
    """
    found_rest = _REST.search(content)
    if found_rest and (head := other_content(content[: found_rest.start()], words)):
        return f"{head}{content[found_rest.start() :]}"
    protected = {at for escape in _ESCAPE.finditer(content) for at in range(*escape.span())}
    places = [at for at in range(len(content) - 1, -1, -1)
              if at not in protected and content[at].isascii() and content[at].isalnum()]  # fmt: skip
    places.sort(key=lambda at: not content[at].isdigit())
    if not places:
        return ""
    at = places[0]
    if not content[at].isdigit():
        for found in reversed(list(_WORD.finditer(content))):
            other = _other_word(found[0], words)
            if other and protected.isdisjoint(range(*found.span())):
                return f"{content[: found.start()]}{other}{content[found.end() :]}"
    return f"{content[:at]}{_other_character(content[at])}{content[at + 1 :]}"


def _other_word(word: str, words: Sequence[str]) -> str:
    """Return another word of similar length and the same case; empty where there is none."""
    if word in _OTHER_WORDS:
        return _OTHER_WORDS[word]
    alike = [
        other
        for other in words
        if abs(len(other) - len(word)) <= 1
        and (other.islower(), other.isupper(), other.istitle())
        == (word.islower(), word.isupper(), word.istitle())
        and other.lower() != word.lower()
    ]
    return alike[len(word) % min(len(alike), 5)] if alike else ""


def _other_character(character: str) -> str:
    """Return another digit, or another vowel or consonant of the same case."""
    if character.isdigit():
        return str(int(character) - 1 if character == "9" else int(character) + 1)
    letters = _VOWELS if character.lower() in _VOWELS else _CONSONANTS
    other = letters[(letters.index(character.lower()) + 1) % len(letters)]
    return other.upper() if character.isupper() else other
