"""Making tasks from source trees: injected faults, hand-written tasks, repeated baselines."""
