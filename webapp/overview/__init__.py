"""Overview page, and metrics for Prometheus."""
