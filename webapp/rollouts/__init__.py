"""What agents did: groups, trajectories, steps, scores."""
