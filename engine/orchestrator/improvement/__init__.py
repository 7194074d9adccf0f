"""Self-improvement by rejection sampling: its loop, the rollouts that are kept, and the rounds' folders."""
