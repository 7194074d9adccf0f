"""Encoding of an answer's test files: UTF-8 text as it is, everything else in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from engine.errors import DatasetError
from engine.types import TaskAnswer


def split_contents(files: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, str]]:
    """Return contents as ``TaskAnswer`` stores them: ``test_files`` (UTF-8) and ``binary_files`` (base64)."""
    texts, binaries = {}, {}
    for path, content in files.items():
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:  # Postgres stores no NUL
            binaries[path] = base64.b64encode(content).decode()
        else:
            texts[path] = text
    return texts, binaries


def contents_of(answer: TaskAnswer) -> dict[str, bytes]:
    """Return path → content of all test files. Raises DatasetError for invalid base64."""
    contents = {path: text.encode("utf-8", "surrogateescape") for path, text in answer.test_files.items()}
    for path, encoded in answer.binary_files.items():
        try:
            contents[path] = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise DatasetError(f"not base64: {error}", field=f"binary_files.{path}") from None
    return contents
