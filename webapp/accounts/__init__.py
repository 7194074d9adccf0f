"""People, their sessions and API tokens, and the permission gate of pages."""
