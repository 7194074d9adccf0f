"""Submissions of agents: which of their files count, how they are applied, signs of tampering."""
