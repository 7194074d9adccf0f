"""Execution of tests in a grading sandbox: placement of files, scripts, guards."""
