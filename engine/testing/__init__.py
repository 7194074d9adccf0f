"""Test runs in sandboxes: the toolchain, the pytest driver and its signed report."""
