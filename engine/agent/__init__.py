"""The agent: prompts, conversations with policies, and the loop over a policy and an environment."""
