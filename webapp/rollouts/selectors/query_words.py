"""Words of texts and queries: what full-text search compares.

A word is a sequence of letters and digits, in lower case: ``np.array(my_list[0])`` has the words np, array,
my, list and 0. PostgreSQL's own parser would take a path or a dotted name as one word.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+")
_TOKENS = re.compile(r'(-?)(?:"([^"]*)"|(\S+))')


def words_of(text: str) -> list[str]:
    """Return the words of a text."""
    return _WORD.findall(text.lower())


def websearch(q: str) -> str:
    """Return a query in PostgreSQL's ``websearch`` syntax; empty without wanted words."""
    return " or ".join(
        " ".join([*(f'"{words}"' for words in wanted), *(f'-"{words}"' for words in unwanted)])
        for wanted, unwanted in _alternatives(q)
    )


def candidates(q: str) -> str:
    """Return the query without the order of words in phrases: an index alone answers it."""
    return " or ".join(
        " ".join(
            [f'"{word}"' for words in wanted for word in words.split()]  # without quotes, or is an operator
            + [f'-"{words}"' for words in unwanted if " " not in words]
        )
        for wanted, unwanted in _alternatives(q)
    )


def has_phrase(q: str) -> bool:
    """Return whether the order of words matters."""
    return any(" " in words for pair in _alternatives(q) for phrases in pair for words in phrases)


def wanted_pattern(q: str) -> re.Pattern[str] | None:
    """Return a case-insensitive pattern of a query's wanted words and phrases; None without any."""
    phrases = _phrases(q, between=r"[\W_]+")
    return re.compile(rf"(?<![^\W_])(?:{phrases})(?![^\W_])", re.IGNORECASE) if phrases else None


def wanted_regex(q: str) -> str:
    """Return the same pattern for PostgreSQL, whose looks behind take quadratic time on long words."""
    return f"(?:^|[^[:alnum:]])(?:{_phrases(q, between='[^[:alnum:]]+')})(?:$|[^[:alnum:]])"


def _phrases(q: str, *, between: str) -> str:
    wanted = {words for phrases, _ in _alternatives(q) for words in phrases}
    longest_first = sorted(wanted, key=lambda words: (-len(words), words))
    return "|".join(words.replace(" ", between) for words in longest_first)


def _alternatives(q: str) -> list[tuple[list[str], list[str]]]:
    """Return the wanted and the unwanted phrases of each alternative of a query, as words.

    The syntax is that of ``websearch``: ``"a phrase"``, ``or``, ``-without``. Alternatives without wanted
    words are left out.
    """
    pairs: list[tuple[list[str], list[str]]] = [([], [])]
    for minus, phrase, word in _TOKENS.findall(q):
        if not minus and word.lower() == "or":
            pairs.append(([], []))
        elif words := words_of(phrase or word):
            pairs[-1][bool(minus)].append(" ".join(words))
    return [pair for pair in pairs if pair[0]]
