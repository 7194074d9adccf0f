"""Attention over packed rows, the same for every architecture: ``attend(q, k, v, segments)``."""

from engine.models.attention.dispatch import attend
from engine.models.attention.segments import Exchange, Ranges, Scoring, Segments, SingleQueries, Store

__all__ = ["Exchange", "Ranges", "Scoring", "Segments", "SingleQueries", "Store", "attend"]
