"""Latency of live pages: parts of ``bench.live``."""
