"""Collection of rollouts at scale: its plan, what earlier attempts and runs have, and the stream itself."""
