"""Names of assertion methods, exceptions and context managers, with their meaning for mutation."""

from __future__ import annotations

import re

from engine.grading.counterfactual.pairs import both_ways

LOOSE = re.compile(r"(?i)approx|close|almost|^any$|anything|mock|match|ignor|wild")
"""Names of objects that may be equal to several values."""
EQUALITIES = frozenset({
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual",
    "assertSequenceEqual", "assertMultiLineEqual", "failUnlessEqual",
})  # fmt: skip
"""Methods that pass where their first two arguments are equal."""
PLAIN_EQUALITIES = frozenset({
    "assertEqual", "assertEquals", "failUnlessEqual", "assertListEqual", "assertTupleEqual",
})  # fmt: skip
"""Those of ``EQUALITIES`` that compare by ``==`` alone.

``assertSequenceEqual`` takes a tuple for a list, ``assertSetEqual`` asks for differences, others use ``!=``.
"""
ALMOST_EQUALITIES = frozenset({"assertAlmostEqual", "assertAlmostEquals", "failUnlessAlmostEqual"})
"""Methods that compare numbers within a tolerance."""
ARRAY_EQUALITIES = frozenset({
    "assert_equal", "assert_array_equal", "assert_allclose", "assert_array_almost_equal",
})  # fmt: skip
"""Functions of ``numpy.testing`` that compare arrays element by element."""
_COMMON_PAIRS = (
    ("assertTrue", "assertFalse"),
    ("assertIn", "assertNotIn"),
    ("assertIsNone", "assertIsNotNone"),
)
_PAIRS = (
    *_COMMON_PAIRS,
    ("assertIs", "assertIsNot"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertRegex", "assertNotRegex"),
    ("assertRegexpMatches", "assertNotRegexpMatches"),
    ("assertAlmostEqual", "assertNotAlmostEqual"),
    ("assertHTMLEqual", "assertHTMLNotEqual"),
    ("assertXMLEqual", "assertXMLNotEqual"),
    ("assertJSONEqual", "assertJSONNotEqual"),
)
COMMON_OPPOSITES = both_ways(*_COMMON_PAIRS)
"""Those of ``OPPOSITES`` that tests use about as often as each other."""
OPPOSITES = both_ways(*_PAIRS) | {
    "assert_": "assertFalse", "failUnless": "assertFalse", "failIf": "assertTrue",
}  # fmt: skip
"""Method → method that fails exactly where it passes, with the same arguments."""
OPPOSITES_OF_TWO = {"assertContains": "assertNotContains", "assertNotContains": "assertContains"}
"""Like ``OPPOSITES``, with two arguments alone."""
OPERATORS = {
    "assertEqual": "==", "assertEquals": "==", "assertNotEqual": "!=", "assertNotEquals": "!=",
    "assertLess": "<", "assertLessEqual": "<=", "assertGreater": ">", "assertGreaterEqual": ">=",
    "assertListEqual": "==", "assertTupleEqual": "==",
}  # fmt: skip
"""Method → operator between its first two arguments that holds where it passes.

Methods that compare by ``!=``, by differences or element by element have none: classes define each of these.
"""
RARELY_NEGATED = frozenset({"isinstance", "issubclass", "callable", "hasattr", "all", "raises"})
"""Functions whose result tests rarely expect to be false."""
TOLERANCES = frozenset({"msg", "places", "delta"})
"""Keyword arguments that a method and its opposite share."""
RAISES = frozenset({
    "pytest.raises", "raises", "self.assertRaises", "self.assertRaisesRegex", "self.assertRaisesRegexp",
    "self.assertRaisesMessage", "self.failUnlessRaises", "assert_raises", "np.testing.assert_raises",
    "numpy.testing.assert_raises",
})  # fmt: skip
WARNS = frozenset({"pytest.warns", "self.assertWarns", "self.assertWarnsRegex"})
BROAD = frozenset({"Exception", "BaseException", "StandardError", "Warning", "ExceptionGroup"})
"""Exceptions and warnings to which unrelated ones belong."""
COMMON_EXCEPTIONS = {
    "ValueError": ("AttributeError", "NotImplementedError"),
    "TypeError": ("AttributeError", "NotImplementedError"),
    "KeyError": ("RuntimeError", "TypeError"),
    "IndexError": ("AttributeError", "RuntimeError"),
    "AttributeError": ("TypeError", "IndexError"),
    "RuntimeError": ("KeyError", "AttributeError"),
    "NotImplementedError": ("ValueError", "AttributeError"),
    "OSError": ("KeyError", "AttributeError"),
    "FileNotFoundError": ("KeyError", "AttributeError"),
    "ZeroDivisionError": ("TypeError", "KeyError"),
    "AssertionError": ("KeyError", "TypeError"),
    "ImportError": ("KeyError", "TypeError"),
    "StopIteration": ("ValueError", "KeyError"),
    "OverflowError": ("TypeError", "KeyError"),
}
"""Built-in exception → others that tests expect as well, and that no class combines with it."""
UNRELATED_EXCEPTIONS = ("BufferError", "ReferenceError")
"""Exceptions that nothing raises as a subclass of another built-in one."""
UNRELATED_WARNINGS = ("BytesWarning", "UnicodeWarning")
NEW_EXCEPTION = 'type("OtherError", (Exception,), {})'
NEW_WARNING = 'type("OtherWarning", (Warning,), {})'
"""Classes of the test alone, for exceptions and warnings of a solution: they may have any built-in base."""
INTROSPECTION = frozenset({
    "locals", "vars", "globals", "eval", "exec", "_getframe", "currentframe", "format_map", "getfixturevalue",
    "callspec", "funcargs",
})  # fmt: skip
"""Names by which code reads the variables of a test."""
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
"""Context managers that let every exception of their body pass."""
NOT_RUN = ("xfail", "expectedfailure", "fixture", "property", "overload")
"""Parts of decorators' names: the function is no test, or may fail."""
