"""Tests in a real browser, which waits for what a page is to show for as long as a busy machine may need."""

from playwright.sync_api import expect

expect.set_options(timeout=60_000)
