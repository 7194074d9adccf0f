"""Memory of an update: counted before a run starts, and measured."""
