"""Commands about datasets and their tasks."""
