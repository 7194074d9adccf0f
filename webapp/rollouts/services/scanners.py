"""Scanners that people enter: a name, and a regular expression or a rubric for a model."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from engine.errors import ConfigError, TrainyardError
from engine.scanners import patterns, rubrics
from engine.scanners.rules import RULES
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.services import audit
from webapp.rollouts.models.scans import EnteredScanner
from webapp.rollouts.services.judgements import usable_endpoint

MOST = 50
"""Maximum number of scanners that people enter."""
NAME = r"[a-z][a-z0-9_]{0,63}"
MOST_WORDS = 300
_RULE_FIELDS = ("pattern", "place", "rubric", "endpoint", "model")


def save(
    *,
    name: str,
    pattern: str = "",
    place: str = "",
    rubric: str = "",
    endpoint: str = "",
    model: str = "",
    words: str = "",
    actor: User | None = None,
) -> EnteredScanner:
    """Enter a scanner, or change one, which raises its version.

    Stored trajectories are then scanned with an expression; a rubric waits for ``judgements.start``.

    Args:
        name: lower-case letters, digits and underscores.
        pattern: regular expression, case-insensitive; empty for a rubric.
        place: texts of steps that it searches, one of ``engine.scanners.patterns.PLACES``.
        rubric: question to a model about a rollout; empty for an expression.
        endpoint: name of the endpoint that is asked.
        model: model, as the endpoint names it.
        words: description of what it finds.
        actor: its author; None for a command.

    Raises:
        ConfigError: a value is not valid; nothing was stored.
    """
    words, rubric = " ".join(words.split()), rubric.strip()
    if not re.fullmatch(NAME, name) or name in RULES:
        raise ConfigError(
            f"name: expected lower-case letters, digits and underscores, and no shipped scanner's name,"
            f" not {name[:80]!r}"
        )
    if len(words) > MOST_WORDS or "\0" in words + pattern + rubric:
        raise ConfigError(f"words: expected at most {MOST_WORDS} characters without NUL")
    if pattern and rubric:
        raise ConfigError("rubric: expected a regular expression or a rubric, not both")
    if rubric:
        if len(rubric) > rubrics.MOST_CHARS:
            raise ConfigError(f"rubric: expected at most {rubrics.MOST_CHARS} characters, not {len(rubric)}")
        usable_endpoint(endpoint, model)
        return _store(name, {"rubric": rubric, "endpoint": endpoint, "model": model}, words, actor)
    if place not in patterns.PLACES:
        raise ConfigError(f"place: expected one of {', '.join(patterns.PLACES)}, not {place[:80]!r}")
    try:
        patterns.check(pattern)
    except TrainyardError as error:
        raise ConfigError(f"pattern: {error}") from None
    return _store(name, {"pattern": pattern, "place": place}, words, actor)


@transaction.atomic
def _store(name: str, rule: dict[str, str], words: str, actor: User | None) -> EnteredScanner:
    known = EnteredScanner.objects.select_for_update().filter(name=name).first()
    if (known is None or known.removed) and EnteredScanner.objects.filter(removed=False).count() >= MOST:
        raise ConfigError(f"there are {MOST} entered scanners: remove one first")
    values = dict.fromkeys(_RULE_FIELDS, "") | rule | {"words": words}
    if known is None:
        try:
            with transaction.atomic():
                scanner = EnteredScanner.objects.create(name=name, created_by=actor, **values)
        except IntegrityError:
            raise ConfigError(f"name: somebody else has just entered a scanner {name!r}") from None
    else:
        scanner = known
        is_new = known.removed
        # Trajectories that were scanned while it was not used are scanned again only for a higher version.
        if is_new or known.problem or any(getattr(known, field) != values[field] for field in _RULE_FIELDS):
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
        changes={**rule, "words": words, "version": scanner.version},
    )
    send_on_commit(TaskName.SCAN)
    return scanner


@transaction.atomic
def remove(*, scanner: EnteredScanner, actor: User | None = None) -> None:
    """Remove a scanner; its hits no longer count."""
    scanner.removed = True
    scanner.save(update_fields=["removed"])
    audit.record(actor=actor, action="scanner.remove", target=f"scanner {scanner.name}")
