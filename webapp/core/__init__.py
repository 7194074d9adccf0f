"""What all rooms share; knows nothing of them but their tables."""
