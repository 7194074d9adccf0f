"""Rollouts in worker processes: ``workers`` supervises them, ``worker`` is the program of one."""
