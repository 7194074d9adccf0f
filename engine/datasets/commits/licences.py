"""Licence of a repository, from its metadata and licence files, read as text.

Declared SPDX expressions come first, then the text of licence files, then other declarations as they are.
``package.json`` counts where Python's metadata name no licence; beside them only after the licence files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from engine.reading import read_bounded
from engine.tools import printable

UNKNOWN = "unknown"
_METADATA = ("pyproject.toml", "setup.cfg", "setup.py")
_TEXTS = re.compile(r"(?:un)?licen[sc]e|copying", re.IGNORECASE)
"""Start of the names of licence files."""
_MAX_BYTES, _MAX_TEXTS = 256 << 10, 8
"""Size and number of the files that are read."""
_MAX_CHARS = 100
"""Length of a declaration, characters."""
_FIELD = re.compile(
    r"^[ \t]*[\"']?licen[sc]e[\"']?[ \t]*[=:][ \t]*([^\n]{1,500})", re.IGNORECASE | re.MULTILINE
)
_QUOTED = re.compile(r"[\"']([^\"']+)[\"']")
_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?([^\"'\n]{2,100})")
_IDENTIFIERS = {
    "mit license": "MIT", "the mit license": "MIT", "expat": "MIT", "apache 2.0": "Apache-2.0",
    "apache 2": "Apache-2.0", "apache software license": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache software license 2.0": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause", "3-clause bsd": "BSD-3-Clause", "new bsd": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause", "bsd 3-clause license": "BSD-3-Clause", "bsd 2-clause": "BSD-2-Clause",
    "2-clause bsd": "BSD-2-Clause", "isc license (iscl)": "ISC", "isc license": "ISC",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "mpl 2.0": "MPL-2.0",
    "the unlicense (unlicense)": "Unlicense", "python software foundation license": "PSF-2.0",
    "gnu general public license v2 (gplv2)": "GPL-2.0-only", "gplv2": "GPL-2.0-only",
    "gnu general public license v2 or later (gplv2+)": "GPL-2.0-or-later",
    "gnu general public license v3 (gplv3)": "GPL-3.0-only", "gplv3": "GPL-3.0-only",
    "gnu general public license v3 or later (gplv3+)": "GPL-3.0-or-later",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "gnu lesser general public license v3 or later (lgplv3+)": "LGPL-3.0-or-later",
    "gnu affero general public license v3": "AGPL-3.0-only",
    "gnu affero general public license v3 or later (agplv3+)": "AGPL-3.0-or-later",
}  # fmt: skip
"""Declarations in lower case whose SPDX identifier is certain."""
_PHRASES = (
    ("AGPL-3.0", ("gnu affero general public license version 3",)),
    ("LGPL-3.0", ("gnu lesser general public license version 3",)),
    ("LGPL-2.1", ("gnu lesser general public license version 2.1",)),
    ("GPL-3.0", ("gnu general public license version 3",)),
    ("GPL-2.0", ("gnu general public license version 2",)),
    ("Apache-2.0", ("apache license version 2.0",)),
    ("MPL-2.0", ("mozilla public license version 2.0",)),
    ("EPL-2.0", ("eclipse public license - v 2.0",)),
    ("PSF-2.0", ("python software foundation license version 2",)),
    ("BSL-1.0", ("boost software license - version 1.0",)),
    ("CC0-1.0", ("creative commons", "cc0 1.0 universal")),
    ("Unlicense", ("this is free and unencumbered software released into the public domain",)),
    ("BSD-4-Clause", ("redistribution and use in source and binary forms", "all advertising materials")),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "endorse or promote products")),
    ("BSD-2-Clause", ("redistribution and use in source and binary forms",)),
    ("MIT", ("permission is hereby granted, free of charge", "this permission notice shall be included")),
    ("MIT-0", ("permission is hereby granted, free of charge, to any person obtaining a copy",)),
    ("ISC", ("permission to use, copy, modify, and/or distribute this software for any purpose",)),
    ("ISC", ("permission to use, copy, modify, and distribute this software for any purpose",)),
    ("Zlib", ("this software is provided 'as-is'", "altered source versions must be plainly marked")),
)
"""Licences with the phrases that their texts contain. The one named first is taken, because licences
mention others."""


def find_licence(tree: Path) -> str:
    """Return the licence of a project at the root of a tree of regular files.

    Returns:
        An SPDX expression, else a declaration as it is, else ``unknown``.
    """
    texts = {name: _read(tree / name) for name in _METADATA}
    declared = [*_declared(texts), *_classifiers(texts)]
    package = _package_licence(_read(tree / "package.json"))
    is_python = any(texts.values())
    for text in declared if is_python else [package]:
        if expression := _expression(text):
            return expression
    names = sorted(path.name for path in tree.iterdir() if path.is_file() and _TEXTS.match(path.name))
    found = dict.fromkeys(recognise_licence(_read(tree / name)) for name in names[:_MAX_TEXTS])
    recognised = [licence for licence in found if licence]
    if recognised:
        return " AND ".join(recognised)
    others = (text for text in declared or [package] if text and not _TEXTS.match(text))
    return next((_expression(text) or text for text in others), UNKNOWN)


def recognise_licence(text: str) -> str:
    """Return the SPDX identifier of a licence's text; empty if it is none of the common ones."""
    words = " ".join(
        re.sub('["“”‘’`]', "'", text).lower().replace("license, version", "license version").split()
    )
    fitting = [
        (words.find(phrases[0]), order, name)
        for order, (name, phrases) in enumerate(_PHRASES)
        if all(phrase in words for phrase in phrases)
    ]
    return min(fitting, default=(0, 0, ""))[2]


def _declared(texts: dict[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        for field in _FIELD.findall(text):
            quoted = _QUOTED.search(field)
            value = quoted[1] if quoted else field if name == "setup.cfg" else ""
            if value.strip():
                yield " ".join(value.split())[:_MAX_CHARS]


def _package_licence(text: str) -> str:
    """Return the licence that a ``package.json`` declares; empty without one."""
    try:
        package = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    licence = package.get("license") if isinstance(package, dict) else None
    if isinstance(licence, dict):
        licence = licence.get("type")
    return printable(" ".join(licence.split())[:_MAX_CHARS]) if isinstance(licence, str) else ""


def _classifiers(texts: dict[str, str]) -> Iterator[str]:
    for text in texts.values():
        for name in _CLASSIFIER.findall(text):
            yield " ".join(name.split())[:_MAX_CHARS]


def _expression(text: str) -> str:
    known = _IDENTIFIERS.get(text.lower(), text)
    try:
        return str(canonicalize_license_expression(known))[:_MAX_CHARS]
    except InvalidLicenseExpression:
        return ""


def _read(path: Path) -> str:
    try:
        return read_bounded(path, _MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
