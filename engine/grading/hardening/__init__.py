"""Additional tests for tasks whose tests let wrong patches pass."""
