"""Collection of rollouts at scale: plan, records of earlier attempts and runs, and the collector itself."""
