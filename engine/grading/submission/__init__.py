"""What an agent submits: which files count, how they are applied, and signs of tampering."""
