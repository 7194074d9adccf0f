"""Records of rollouts: groups, trajectories, steps, scores."""
