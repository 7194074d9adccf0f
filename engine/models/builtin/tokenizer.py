"""Byte-level BPE for source code, with ChatML markers that no text can forge.

Tool tags are single ordinary tokens (a tiny model writes a call in few steps); every digit is a
separate token; runs of blanks, newlines and backquotes are never merged with the following text, so
a line of code has the same tokens in a listing, in a quotation and in a tool argument, which makes
copying easy to learn.
To add a tool tag: put it in ``TAGS`` and train a new tokenizer; shipped checkpoints keep their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex
from tokenizers import Tokenizer as _Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.trainers import BpeTrainer

from engine.errors import CheckpointError
from engine.reading import read_bounded

IM_START, IM_END, THINK_START, THINK_END = "<|im_start|>", "<|im_end|>", "<think>", "</think>"
END_OF_TEXT = "<|endoftext|>"
_MAX_TOKENIZER = 64 << 20
SPECIALS = (END_OF_TEXT, IM_START, IM_END, THINK_START, THINK_END)
_PARAMETERS = (
    "command",
    "path",
    "view_range",
    "old_str",
    "new_str",
    "file_text",
    "insert_line",
    "concise",
    "search_term",
    "python_only",
    "result",
)
TAGS = (
    *(f"<function={name}>" for name in ("file_editor", "execute_bash", "search", "finish")),
    *(f"<parameter={name}>" for name in _PARAMETERS),
    "</parameter>",
    "</function>",
)
"""Tool-call markup, one ordinary token each: plain text may contain it."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PIECES = r"`| {2,}|\n| ?[\p{L}_]+|\p{N}| ?[^\s\p{L}\p{N}_`]+|\s"


class BpeTokenizer:
    """Tokenizer over a Hugging Face ``tokenizers`` backend (``engine.models.chat.base.Tokenizer``).

    Args:
        backend: must have the four ChatML and thinking markers as special tokens.
    """

    def __init__(self, backend: _Backend) -> None:
        self._backend = backend
        self._backend.encode_special_tokens = True
        self.vocab_size = backend.get_vocab_size()
        self.im_start = self._id(IM_START)
        self.im_end = self._id(IM_END)
        self.think_start = self._id(THINK_START)
        self.think_end = self._id(THINK_END)

    def __reduce__(self) -> tuple[type[BpeTokenizer], tuple[_Backend]]:
        """Pickle by the constructor: a pickled backend forgets to keep spelled-out control tokens as text."""
        return BpeTokenizer, (self._backend,)

    def _id(self, token: str) -> int:
        token_id = self._backend.token_to_id(token)
        if token_id is None:
            raise CheckpointError(f"the tokenizer has no {token} token")
        return token_id

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; ``<|im_end|>`` and its like become plain bytes, tool tags stay tags.

        Lone surrogates become ``?``.
        """
        clean = text.encode("utf-8", "replace").decode()
        return list(self._backend.encode(clean, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens spelled out; invalid UTF-8 becomes U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def save(self, folder: Path) -> None:
        """Write the tokenizer, its chat template and the end of a turn in ``transformers``' format."""
        (folder / "tokenizer.json").write_text(self._backend.to_str(pretty=False))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": IM_END,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        generation = {"eos_token_id": self.im_end, "pad_token_id": self._id(END_OF_TEXT)}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_tokenizer(folder: Path) -> BpeTokenizer:
    """Read a folder's ``tokenizer.json``. Raises CheckpointError."""
    path = folder / "tokenizer.json"
    try:
        return BpeTokenizer(_Backend.from_str(read_bounded(path, _MAX_TOKENIZER).decode()))
    except CheckpointError:
        raise
    except Exception as error:  # the backend raises bare Exception for a missing or malformed file
        raise CheckpointError(f"cannot read the tokenizer {path}: {error}") from error


def phrase_tokenizer(phrases: Iterable[str]) -> BpeTokenizer:
    """Return a tokenizer of bytes, markers and whole phrases (one token each), for protocols of few words.

    Where phrases overlap, the first and then the longest is taken.
    """
    alphabet = [*SPECIALS, *sorted(ByteLevel.alphabet())]
    backend = _Backend(BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens(list(SPECIALS))
    backend.add_tokens(list(phrases))
    return BpeTokenizer(backend)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 2048) -> BpeTokenizer:
    """Learn merges from texts; the same texts give the same tokenizer.

    Args:
        texts: source code and episodes; their XML tags are whole tokens already.
        vocab_size: ids in total; at least 256 bytes + specials + tags.
    """
    backend = _Backend(BPE())
    backend.pre_tokenizer = Steps(
        [
            Split(Regex(_PIECES), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=list(SPECIALS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens(list(TAGS))
    if backend.get_vocab_size() != vocab_size:
        raise ValueError(f"the texts give only {backend.get_vocab_size()} of {vocab_size} tokens")
    return BpeTokenizer(backend)
