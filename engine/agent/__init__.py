"""The agent: prompts, token-id conversation and the loop over a policy and an environment."""
