"""Source trees of tasks: fetched and unpacked without running any of their code."""
