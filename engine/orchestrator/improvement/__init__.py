"""Self-improvement by rejection sampling: the loop, the selection of rollouts, and the rounds' folders."""
