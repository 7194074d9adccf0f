"""Markers between which evaluation scripts print the output of their tests, as SWE-bench's harness does."""

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
