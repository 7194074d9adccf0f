"""``python -m engine.datasets.conversations IN OUT --format sharegpt``: convert conversations.

IN is read in any known format (``reading``), OUT written in the given one. Lines that cannot be read or
expressed are reported on stderr, by kind, and left out. Exit code 2: nothing could be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from engine.datasets.conversations.base import Conversation, ConversationError
from engine.datasets.conversations.reading import Rejected, read_conversations
from engine.datasets.conversations.text_calls import to_native, to_text
from engine.datasets.conversations.writing import FORMATS, sharegpt_row, write_conversations
from engine.datasets.line_problems import LineProblems
from engine.errors import DatasetError
from engine.terminal import visible_text

_CALLS: Mapping[str, Callable[[Conversation], Conversation]] = {
    "keep": lambda conversation: conversation,
    "text": to_text,
    "native": to_native,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m engine.datasets.conversations", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=sorted(FORMATS), default="openai")
    parser.add_argument("--calls", choices=sorted(_CALLS), default="keep", help="format of the tool calls")
    parser.add_argument("--resolved", action="store_true", help="only conversations that solved their task")
    given = parser.parse_args(arguments)
    convert = _shared if given.format == "sharegpt" else _CALLS[given.calls]
    left_out, odd = LineProblems(), LineProblems("written with parts that were replaced")
    try:
        kept = _kept(given.source, convert, left_out, odd, resolved=given.resolved)
        count = write_conversations(kept, given.out, given.format)
    except (DatasetError, ConversationError, OSError) as error:
        print(visible_text(str(error)), file=sys.stderr)
        return 2
    finally:
        left_out.report(given.source)
        odd.report(given.source)
    if not count:
        print(f"{given.source} has no conversation to write{left_out.hint}", file=sys.stderr)
    print(f"wrote {count} rows to {given.out}")
    return 0 if count else 2


def _shared(conversation: Conversation) -> Conversation:
    """Return a conversation that ShareGPT can express. Raises ConversationError."""
    found = to_text(conversation)
    sharegpt_row(found)
    return found


def _kept(
    source: Path,
    convert: Callable[[Conversation], Conversation],
    left_out: LineProblems,
    odd: LineProblems,
    *,
    resolved: bool,
) -> Iterator[Conversation]:
    for number, found in read_conversations(source):
        if isinstance(found, Rejected):
            left_out.add(number, found.reason)
            continue
        if resolved and not found.resolved:
            continue
        try:
            yield convert(found)
        except ConversationError as error:
            left_out.add(number, str(error))
            continue
        if found.problems:
            odd.add(number, next(iter(found.problems.values())))


if __name__ == "__main__":
    sys.exit(main())
