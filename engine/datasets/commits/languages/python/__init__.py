"""Python: entities by ``ast``, wheels as of a date, tests by the signing driver of pytest."""
