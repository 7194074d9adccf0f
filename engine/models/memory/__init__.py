"""Memory of an update: estimated before a run starts, and measured."""
