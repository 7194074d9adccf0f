"""Events of engines, made into rows."""
