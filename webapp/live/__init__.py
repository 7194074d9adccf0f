"""Live pages: Channels consumers and the fragments they send. See ``fragments`` for how to add a region."""
