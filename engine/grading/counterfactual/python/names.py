"""Names of assertion methods and context managers, with their meaning for mutation, and texts of mutants."""

from __future__ import annotations

import re

LOOSE = re.compile(r"(?i)approx|close|almost|^any$|anything|mock|match|ignor|wild")
"""Names of objects that may be equal to several values."""
EQUALITIES = frozenset({
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual",
    "assertSequenceEqual", "assertMultiLineEqual", "failUnlessEqual", "assertCountEqual", "assertItemsEqual",
})  # fmt: skip
"""Methods that pass if their first two arguments are equal."""
FUNCTION_EQUALITIES = frozenset({"eq_", "assert_equal", "assert_equals"})
"""Functions with the same meaning, in ``nose.tools`` and helpers of projects."""
ALMOST_EQUALITIES = frozenset({"assertAlmostEqual", "assertAlmostEquals", "failUnlessAlmostEqual"})
"""Methods that compare numbers within a tolerance."""
ARRAY_EQUALITIES = frozenset({
    "assert_equal", "assert_array_equal", "assert_allclose", "assert_array_almost_equal",
})  # fmt: skip
"""Functions of ``numpy.testing`` that compare arrays element by element."""
_PAIRS = (
    ("assertTrue", "assertFalse"),
    ("assertIn", "assertNotIn"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertIs", "assertIsNot"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertRegex", "assertNotRegex"),
    ("assertRegexpMatches", "assertNotRegexpMatches"),
    ("assertAlmostEqual", "assertNotAlmostEqual"),
    ("assertHTMLEqual", "assertHTMLNotEqual"),
    ("assertXMLEqual", "assertXMLNotEqual"),
    ("assertJSONEqual", "assertJSONNotEqual"),
)
OPPOSITES = dict([*_PAIRS, *(pair[::-1] for pair in _PAIRS)]) | {
    "assert_": "assertFalse", "failUnless": "assertFalse", "failIf": "assertTrue",
}  # fmt: skip
"""Method → method that fails exactly where it passes, with the same arguments."""
OPERATORS = {
    "assertEqual": "==", "assertEquals": "==", "assertNotEqual": "!=", "assertNotEquals": "!=",
    "assertLess": "<", "assertLessEqual": "<=", "assertGreater": ">", "assertGreaterEqual": ">=",
    "assertListEqual": "==", "assertTupleEqual": "==",
}  # fmt: skip
"""Method → operator between its first two arguments that holds if it passes.

Left out are methods that compare by ``!=``, by differences or element by element: a class may define each of
these separately.
"""
TOLERANCES = frozenset({"msg", "places", "delta"})
"""Keyword arguments that a method and its opposite share."""
RAISES = frozenset({
    "pytest.raises", "self.assertRaises", "self.assertRaisesRegex", "self.assertRaisesRegexp",
    "self.assertRaisesMessage", "self.failUnlessRaises",
})  # fmt: skip
INTROSPECTION = frozenset({
    "locals", "vars", "globals", "eval", "exec", "_getframe", "currentframe", "format_map", "getfixturevalue",
    "callspec", "funcargs",
})  # fmt: skip
"""Names with which code reads the variables of a test."""
TRANSPARENT = frozenset({
    "open", "io.open", "self.subTest", "self.settings", "self.modify_settings", "override_settings",
    "modify_settings", "self.assertNumQueries", "self.assertWarns", "self.assertWarnsRegex",
    "self.assertLogs", "self.captureOnCommitCallbacks", "CaptureQueriesContext", "patch", "patch.object",
    "patch.dict", "patch.multiple", "mock.patch", "mock.patch.object", "mock.patch.dict",
    "mock.patch.multiple", "mocker.patch", "mocker.patch.object", "monkeypatch.context",
    "warnings.catch_warnings", "catch_warnings", "pytest.warns", "pytest.deprecated_call",
    "tempfile.TemporaryDirectory", "TemporaryDirectory", "tempfile.NamedTemporaryFile",
    "NamedTemporaryFile", "np.errstate", "numpy.errstate", "localcontext", "decimal.localcontext",
    "redirect_stdout", "redirect_stderr", "contextlib.redirect_stdout", "contextlib.redirect_stderr",
})  # fmt: skip
"""Context managers that propagate every exception of their body."""
NOT_RUN = ("xfail", "expectedfailure", "fixture", "property", "overload")
"""Parts of decorators' names that mark a function as no test, or as allowed to fail."""
OTHER = (
    "(lambda v: {True.__class__: lambda: not v, None.__class__: lambda: 0, (0).__class__: lambda: v + 1, "
    '(0.5).__class__: lambda: v * v + 2.5, "".__class__: lambda: v + "x", b"".__class__: lambda: v + b"x", '
    '[].__class__: lambda: [*v, None], ().__class__: lambda: (*v, None), {0}.__class__: lambda: v | {"x"}, '
    '{}.__class__: lambda: {**v, "other": v}}.get(v.__class__, lambda: (v, "other"))())'
)
"""Function that returns a value unequal to its argument, of the same class if that is well known. It uses
literals only, as a test file may redefine the names of classes."""
