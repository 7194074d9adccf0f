"""Look of a row's health on pages."""

from __future__ import annotations

from webapp.core.contexts.words import in_words

_MARKS = {
    "valid": ("passed", "✓"), "noop_passes": ("warning", "○"), "gold_fails": ("failed", "✕"),
    "flaky": ("tampered", "≈"), "infra": ("infra", "!"),
}  # fmt: skip
LOOKS = {
    **{status: (*look, in_words(status)) for status, look in _MARKS.items()},
    "": ("open", "–", "never validated"),
}
"""Status of a validation → css class, second cue beside the colour, label."""
