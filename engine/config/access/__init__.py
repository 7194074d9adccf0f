"""What a configuration makes a run reach: paths, hosts, models, repositories; and what is allowed."""
