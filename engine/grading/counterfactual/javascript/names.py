"""Names of the assertion libraries of JavaScript, with their meaning for mutation."""

from __future__ import annotations

import re

from engine.grading.counterfactual.pairs import both_ways

LOOSE = re.compile(r"(?i)closeTo|approx|almost|anything|\bany\b|soft|matching|containing")
"""Names in an assertion that equals several values."""
TOLERANT = re.compile(rb"(?i)EqualityTester|chai-?(?:almost|roughly)|overwriteMethod|overwriteProperty")
"""Text of files that give known assertions another meaning."""
MODULES = frozenset({
    "chai", "@esm-bundle/chai", "@open-wc/testing", "should", "expect.js", "assert", "node:assert",
    "assert/strict", "node:assert/strict", "power-assert", "uvu/assert", "expect", "vitest", "@jest/globals",
    "bun:test", "@playwright/test", "supertest",
})  # fmt: skip
"""Packages whose assertions are known."""
SUITES = frozenset({"describe", "context", "suite", "module"})
TESTS = frozenset({"it", "test", "specify"})
OWNERS = frozenset({"QUnit", "Deno"})
RUN = frozenset({"only", "concurrent", "serial", "sequential", "each", "for"})
"""Properties of a test function that still run the test."""

MATCHERS = {
    "toBe": 0, "toEqual": 0, "toStrictEqual": 0, "toMatchObject": 0, "toHaveLength": 0, "toHaveProperty": 1,
    "toHaveBeenCalledTimes": 0, "toBeCalledTimes": 0, "toHaveLastReturnedWith": 0, "toMatchInlineSnapshot": 0,
    "toThrowErrorMatchingInlineSnapshot": 0,
}  # fmt: skip
"""Matcher → first argument that equality decides."""
ALL_ARGUMENTS = frozenset({"toHaveBeenLastCalledWith", "lastCalledWith"})
OPPOSITE_MATCHERS = {
    "toBeTruthy": "toBeFalsy", "toBeFalsy": "toBeTruthy",
    "toBeDefined": "toBeUndefined", "toBeUndefined": "toBeDefined",
    "toBeGreaterThan": "toBeLessThanOrEqual", "toBeLessThanOrEqual": "toBeGreaterThan",
    "toBeLessThan": "toBeGreaterThanOrEqual", "toBeGreaterThanOrEqual": "toBeLessThan",
    "toBeTrue": "toBeFalse", "toBeFalse": "toBeTrue",
}  # fmt: skip
"""Matcher → one that fails where it passes, with the same arguments."""
NEGATED = frozenset({
    "toBeNull", "toBeNaN", "toContain", "toContainEqual", "toMatch", "toThrow", "toThrowError",
    "toBeInstanceOf", "toHaveBeenCalled", "toBeCalled", "toHaveBeenCalledWith", "toBeCalledWith",
    "toHaveProperty", "toBeInTheDocument", "toBeVisible", "toBeDisabled", "toHaveTextContent",
    "toHaveAttribute", "toHaveClass", "toBeChecked", "toBeEmptyDOMElement",
})  # fmt: skip
"""Matchers that tests also use with ``not``."""
EQUAL_MATCHERS = frozenset({"toBe", "toEqual", "toStrictEqual"})

CHAI_WORDS = frozenset({
    "to", "be", "been", "is", "that", "which", "and", "has", "have", "with", "at", "of", "same", "but",
    "does", "still", "also", "deep", "own", "nested", "an", "a",
})  # fmt: skip
CHAI_CALLS = frozenset({"a", "an", "property", "ownProperty", "instanceof", "instanceOf"})
"""Assertions that may come before the last one."""
CHAI_EQUAL = {
    "equal": 0, "equals": 0, "eq": 0, "eql": 0, "eqls": 0, "exactly": 0, "length": 0, "lengthOf": 0,
    "property": 1, "ownProperty": 1,
}  # fmt: skip
CHAI_OPPOSITES = {"true": "false", "false": "true"}
CHAI_NEGATED = frozenset({
    "null", "undefined", "ok", "empty", "exist", "include", "includes", "contain", "contains", "throw",
    "throws", "match", "property", "instanceof", "instanceOf", "members", "keys",
})  # fmt: skip

ASSERT_EQUAL = {
    "equal": "notEqual", "strictEqual": "notStrictEqual", "deepEqual": "notDeepEqual",
    "deepStrictEqual": "notDeepStrictEqual",
}  # fmt: skip
"""Function of an ``assert`` module → its opposite."""
ASSERT_OPPOSITES = both_ways(
    *ASSERT_EQUAL.items(), ("isTrue", "isFalse"), ("isNull", "isNotNull"), ("isUndefined", "isDefined"),
    ("isOk", "isNotOk"), ("include", "notInclude"), ("match", "doesNotMatch"),
)  # fmt: skip
CONTEXT_EQUAL = frozenset({
    "is", "equal", "equals", "same", "deepEqual", "strictEqual", "deepStrictEqual", "strictSame", "eq",
})  # fmt: skip
"""Methods of the test context of AVA, tap and tape."""
CONTEXT_OPPOSITES = {
    "true": "false", "false": "true", "truthy": "falsy", "falsy": "truthy", "ok": "notOk", "notOk": "ok",
}  # fmt: skip
BARE_EQUAL = frozenset({"strictEqual", "deepStrictEqual", "deepEqual"})
ERRORS = {"TypeError": "RangeError", "RangeError": "TypeError", "SyntaxError": "TypeError",
          "ReferenceError": "TypeError"}  # fmt: skip
"""Built-in error → another that no error is an instance of as well."""
