"""Scanners that people enter: a name and a regular expression."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from engine.errors import ConfigError, TrainyardError
from engine.scanners import patterns
from engine.scanners.rules import RULES
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.services import audit
from webapp.rollouts.models.scans import PatternScanner

MOST = 50
"""Maximum number of scanners that people enter."""
NAME = r"[a-z][a-z0-9_]{0,63}"
MOST_WORDS = 300


def save(
    *, name: str, pattern: str, place: str, words: str = "", actor: User | None = None
) -> PatternScanner:
    """Enter a scanner, or change one, which raises its version; stored trajectories are then scanned.

    Args:
        name: lower-case letters, digits and underscores.
        pattern: regular expression, case-insensitive.
        place: texts of steps that it searches, one of ``engine.scanners.patterns.PLACES``.
        words: description of what it finds.
        actor: its author; None for a command.

    Raises:
        ConfigError: a value is not valid; nothing was stored.
    """
    words = " ".join(words.split())
    if not re.fullmatch(NAME, name) or name in RULES:
        raise ConfigError(
            f"name: expected lower-case letters, digits and underscores, and no shipped scanner's name,"
            f" not {name[:80]!r}"
        )
    if place not in patterns.PLACES:
        raise ConfigError(f"place: expected one of {', '.join(patterns.PLACES)}, not {place[:80]!r}")
    if len(words) > MOST_WORDS or "\0" in words + pattern:
        raise ConfigError(f"words: expected at most {MOST_WORDS} characters without NUL")
    try:
        patterns.check(pattern)
    except TrainyardError as error:
        raise ConfigError(f"pattern: {error}") from None
    return _store(name, pattern, place, words, actor)


@transaction.atomic
def _store(name: str, pattern: str, place: str, words: str, actor: User | None) -> PatternScanner:
    known = PatternScanner.objects.select_for_update().filter(name=name).first()
    if (known is None or known.removed) and PatternScanner.objects.filter(removed=False).count() >= MOST:
        raise ConfigError(f"there are {MOST} entered scanners: remove one first")
    values = {"pattern": pattern, "place": place, "words": words}
    if known is None:
        try:
            with transaction.atomic():
                scanner = PatternScanner.objects.create(name=name, created_by=actor, **values)
        except IntegrityError:
            raise ConfigError(f"name: somebody else has just entered a scanner {name!r}") from None
    else:
        scanner = known
        is_new = known.removed
        # Trajectories that were scanned while it was not used are scanned again only for a higher version.
        if is_new or known.problem or (known.pattern, known.place) != (pattern, place):
            scanner.version += 1
        for field, value in values.items():
            setattr(scanner, field, value)
        scanner.problem, scanner.num_slow, scanner.removed = "", 0, False
        scanner.created_by = actor if is_new else known.created_by
        scanner.save()
    audit.record(
        actor=actor,
        action="scanner.save",
        target=f"scanner {name}",
        changes={**values, "version": scanner.version},
    )
    send_on_commit(TaskName.SCAN)
    return scanner


@transaction.atomic
def remove(*, scanner: PatternScanner, actor: User | None = None) -> None:
    """Remove a scanner; its hits no longer count."""
    scanner.removed = True
    scanner.save(update_fields=["removed"])
    audit.record(actor=actor, action="scanner.remove", target=f"scanner {scanner.name}")
