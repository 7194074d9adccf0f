"""The first page, and the numbers for Prometheus."""
