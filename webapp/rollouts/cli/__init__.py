"""Commands about rollouts and trajectories."""
