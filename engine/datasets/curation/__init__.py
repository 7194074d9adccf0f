"""Creation of tasks from source trees: injected faults, hand-written tasks, repeated baseline runs."""
