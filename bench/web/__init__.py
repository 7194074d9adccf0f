"""The web application over a large database: parts of ``bench.web``."""
