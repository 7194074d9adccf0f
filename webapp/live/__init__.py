"""Live pages: Channels consumer and page fragments. To add a region see ``fragments``."""
