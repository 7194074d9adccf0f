"""Live pages: Channels consumer and the fragments it sends. To add a region see ``fragments``."""
