"""``python -m engine.datasets.conversations IN OUT --format sharegpt``: convert conversations.

IN is read in any known format (``reading``), OUT written in the given one. Lines that cannot be read or
expressed are reported on stderr with their numbers and left out. Exit code 2: nothing could be written.
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
from engine.errors import DatasetError
from engine.terminal import visible_line, visible_text

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
    try:
        kept = _kept(given.source, convert, resolved=given.resolved)
        count = write_conversations(kept, given.out, given.format)
    except (DatasetError, ConversationError, OSError) as error:
        print(visible_text(str(error)), file=sys.stderr)
        return 2
    print(f"wrote {count} rows to {given.out}")
    return 0 if count else 2


def _shared(conversation: Conversation) -> Conversation:
    """Return a conversation that ShareGPT can express. Raises ConversationError."""
    found = to_text(conversation)
    sharegpt_row(found)
    return found


def _kept(
    source: Path, convert: Callable[[Conversation], Conversation], *, resolved: bool
) -> Iterator[Conversation]:
    for number, found in read_conversations(source):
        if isinstance(found, Rejected):
            print(visible_line(f"{source}, line {number}: {found.reason}"), file=sys.stderr)
            continue
        if resolved and not found.resolved:
            continue
        try:
            yield convert(found)
        except ConversationError as error:
            print(visible_line(f"{source}, line {number}: {error}"), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
