"""``python -m engine.datasets.conversations IN OUT --format sharegpt``: convert conversations.

IN may have any known format (``reading``); OUT is written in the given one. Lines that cannot be read or
expressed are left out and reported on stderr, by kind. Exit code 2: nothing could be written.
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
    args = parser.parse_args(arguments)
    convert = _shared if args.format == "sharegpt" else _CALLS[args.calls]
    left_out, odd = LineProblems(), LineProblems("written with parts that were replaced")
    try:
        kept = _kept(args.source, convert, left_out, odd, resolved=args.resolved)
        count = write_conversations(kept, args.out, args.format)
    except (DatasetError, ConversationError, OSError) as error:
        print(visible_text(str(error)), file=sys.stderr)
        return 2
    finally:
        left_out.report(args.source)
        odd.report(args.source)
    if not count:
        print(f"{args.source} has no conversation to write{left_out.hint}", file=sys.stderr)
    print(f"wrote {count} rows to {args.out}")
    return 0 if count else 2


def _shared(conversation: Conversation) -> Conversation:
    """Convert a conversation for ShareGPT. Raises ConversationError if it cannot be expressed."""
    converted = to_text(conversation)
    sharegpt_row(converted)
    return converted


def _kept(
    source: Path,
    convert: Callable[[Conversation], Conversation],
    left_out: LineProblems,
    odd: LineProblems,
    *,
    resolved: bool,
) -> Iterator[Conversation]:
    for number, conversation in read_conversations(source):
        if isinstance(conversation, Rejected):
            left_out.add(number, conversation.reason)
            continue
        if resolved and not conversation.resolved:
            continue
        try:
            yield convert(conversation)
        except ConversationError as error:
            left_out.add(number, str(error))
            continue
        if conversation.problems:
            odd.add(number, next(iter(conversation.problems.values())))


if __name__ == "__main__":
    sys.exit(main())
