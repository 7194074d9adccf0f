"""Tests in a real browser, with timeouts that suffice on a busy machine."""

from playwright.sync_api import expect

expect.set_options(timeout=60_000)
