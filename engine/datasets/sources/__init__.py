"""Source trees of tasks: fetched and unpacked without running anything of theirs."""
