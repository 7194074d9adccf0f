"""Markers around the test output of evaluation scripts, as in SWE-bench's harness."""

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
