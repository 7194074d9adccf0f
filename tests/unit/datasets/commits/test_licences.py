"""Licences of repositories, from declarations and licence files."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.datasets.commits.licences import find_licence

MIT = """Copyright (c) 2024 A
Permission is hereby granted, free of charge, to any person obtaining a copy of this software …
The above copyright notice and this permission notice shall be included in all copies …
"""
BSD = """Redistribution and use in source and binary forms, with or without modification, are permitted …
* Neither the name of the holder nor the names of its contributors may endorse or promote products …
"""
MPL = "Mozilla Public License Version 2.0\n… the GNU Affero General Public License, Version 3.0, or any later"
ISC = '{"name": "docs", "license": "ISC"}'
APACHE = "                    Apache License\n              Version 2.0, January 2004\n"


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"pyproject.toml": '[project]\nlicense = "mit or isc"\n', "LICENSE": BSD}, "MIT OR ISC"),
        ({"pyproject.toml": '[project]\nlicense = {file = "LICENSE"}\n', "LICENSE": BSD}, "BSD-3-Clause"),
        ({"setup.cfg": "[metadata]\nlicense = Apache License 2.0\nlicense_file = COPYING\n"}, "Apache-2.0"),
        ({"setup.py": "setup(\n    license='BSD',\n)\n", "LICENSE.txt": BSD}, "BSD-3-Clause"),
        ({"setup.py": "setup(\n    license='BSD',\n)\n"}, "BSD"),
        ({"setup.py": "    'License :: OSI Approved :: MIT License',\n"}, "MIT"),
        ({"setup.py": "    'License :: Other/Proprietary License',\n"}, "Other/Proprietary License"),
        ({"package.json": '{\n  "license": "ISC"\n}\n', "LICENSE": MIT}, "ISC"),
        ({"package.json": '{"name":"x","license":"MIT"}'}, "MIT"),
        ({"package.json": '{"license":{"type":"Custom \\ud800"}}'}, "Custom \ufffd"),
        ({"package.json": '{"license":["MIT"]}'}, "unknown"),
        ({"package.json": "[" * 100_000}, "unknown"),
        ({"pyproject.toml": '[project]\nlicense = {file = "LICENSE"}\n', "package.json": ISC, "LICENSE": BSD},
         "BSD-3-Clause"),
        ({"pyproject.toml": '[project]\nlicense = {file = "LICENSE"}\n', "package.json": ISC}, "unknown"),
        ({"setup.py": "setup()\n", "package.json": ISC, "LICENSE": BSD}, "BSD-3-Clause"),
        ({"setup.py": "setup()\n", "package.json": ISC}, "ISC"),
        ({"LICENCE": MIT.replace(" ", "\n")}, "MIT"),
        ({"COPYING": MPL}, "MPL-2.0"),
        ({"LICENSE-APACHE": APACHE, "LICENSE-MIT": MIT}, "Apache-2.0 AND MIT"),
        ({"LICENSE": "All rights reserved."}, "unknown"),
        ({"LICENSE": MIT + "x" * (1 << 20), "pyproject.toml": "license = " + "[" * 100_000}, "unknown"),
        ({}, "unknown"),
    ],
)  # fmt: skip
def test_licence_is_found(tmp_path: Path, files: dict[str, str], licence: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert find_licence(tmp_path) == licence
