"""How tests run in a grading sandbox: files in place, scripts, guards."""
