"""One frozen dataclass per page: exactly what its template shows. A test compares the two.

To add a page: a dataclass with ``section`` and ``crumbs`` here, a builder beside it that calls
selectors, a thin view, a template; list it in ``tests/unit/webapp/test_contexts.py``.
"""
