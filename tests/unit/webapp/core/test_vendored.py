"""Vendored files match their manifest, and pages load nothing from other sites."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
VENDOR = ROOT / "static" / "vendor"


def test_vendored_files_match_the_hashes_of_the_manifest() -> None:
    manifest = json.loads((VENDOR / "MANIFEST.json").read_text())
    listed = {
        Path(library["folder"]) / name: digest
        for library in manifest["libraries"]
        for name, digest in library["files"].items()
    }
    present = {path.relative_to(VENDOR) for path in VENDOR.rglob("*") if path.is_file()}
    assert present == {*listed, Path("MANIFEST.json")}
    for path, digest in listed.items():
        assert hashlib.sha256((VENDOR / path).read_bytes()).hexdigest() == digest, path
    for library in manifest["libraries"]:
        assert library["version"] in library["folder"]
        assert "LICENSE" in library["files"]


def test_templates_have_no_inline_script_style_or_external_address() -> None:
    inline = re.compile(r"""\sstyle\s*=|\son[a-z]+\s*=\s*["']|<style|javascript:|https?://""")
    script = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>")
    templates = list((ROOT / "templates").rglob("*.html"))
    assert ROOT / "templates" / "base.html" in templates
    for path in templates:
        text = path.read_text()
        assert not inline.search(text), path
        assert not script.search(text), path


def test_own_scripts_and_styles_have_no_external_address_or_eval() -> None:
    scripts = list((ROOT / "static" / "js").glob("*.js"))
    styles = list((ROOT / "static" / "css").glob("*.css"))
    assert scripts
    assert styles
    for path in (*scripts, *styles):
        text = path.read_text()
        assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path
        assert "eval(" not in text, path
