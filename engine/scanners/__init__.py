"""Scanners: versioned rules that look for behaviours in the steps of finished trajectories.

``rules`` all shipped scanners · ``patterns`` regular expressions of people, matched in a separate process
· ``rubrics`` questions to a model · ``trajectory`` what a scanner reads · ``shell`` reading of shell commands
· ``tool_kinds`` names of tools.
"""
