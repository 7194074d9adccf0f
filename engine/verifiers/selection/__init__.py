"""Selection of one rollout among several, and exact Best@K."""
