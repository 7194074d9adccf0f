"""Test logs and their parsers, outside of the sandbox that wrote them."""
