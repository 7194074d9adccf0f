"""Names of Java's assertion libraries, with their meaning for mutation."""

from __future__ import annotations

import re

from engine.grading.counterfactual.pairs import both_ways

LOOSE = re.compile(r"(?i)using|ignor|compar|within|close|offset|percent|soft")
"""Names in a chain of assertions that equals several values."""
TESTS = frozenset({"Test", "ParameterizedTest", "RepeatedTest"})
SKIPPED = frozenset({"Disabled", "Ignore"})
CLASSES = frozenset({
    "Assert", "Assertions", "AssertJUnit", "TestCase", "MatcherAssert", "Truth", "AssertionsForClassTypes",
    "AssertionsForInterfaceTypes",
})  # fmt: skip
"""Classes whose assertions are known."""
EQUAL = {"assertEquals": "assertNotEquals", "assertArrayEquals": "", "assertIterableEquals": ""}
"""Assertion that two arguments are equal → its opposite, empty where there is none."""
OPPOSITES = both_ways(
    ("assertTrue", "assertFalse"), ("assertNull", "assertNotNull"), ("assertSame", "assertNotSame"),
)  # fmt: skip
CHAIN_EQUAL = frozenset({
    "isEqualTo", "hasSize", "hasMessage", "hasToString", "containsExactly", "containsExactlyInAnyOrder",
    "hasMessageThat",
})  # fmt: skip
CHAIN_OPPOSITES = both_ways(
    ("isTrue", "isFalse"), ("isNull", "isNotNull"), ("isSameAs", "isNotSameAs"),
    ("contains", "doesNotContain"), ("isInstanceOf", "isNotInstanceOf"),
    ("containsKey", "doesNotContainKey"), ("startsWith", "doesNotStartWith"), ("endsWith", "doesNotEndWith"),
    ("isEmpty", "isNotEmpty"),
)  # fmt: skip
NOT_OF_TRUTH = frozenset({
    "isEmpty", "isNotEmpty", "startsWith", "doesNotStartWith", "endsWith", "doesNotEndWith", "isSameAs",
    "isNotSameAs",
})  # fmt: skip
"""Assertions without an opposite for every type in Truth."""
MATCHERS = frozenset({"is", "equalTo", "hasSize"})
"""Matchers of Hamcrest that equality decides."""
MATCHER_CLASSES = frozenset({"Matchers", "CoreMatchers", "Is", "IsEqual", "IsCollectionWithSize"})
COLLECTIONS = frozenset({
    "List.of", "Arrays.asList", "ImmutableList.of", "Collections.singletonList", "Collections.singleton",
    "Integer.valueOf", "Long.valueOf", "Optional.of", "Lists.newArrayList", "Boolean.valueOf", "Byte.valueOf",
})  # fmt: skip
"""Methods whose result differs where one of their arguments differs."""
_UNCHECKED = (
    "IllegalArgumentException", "NullPointerException", "IndexOutOfBoundsException", "ArithmeticException",
    "UnsupportedOperationException", "ClassCastException", "NumberFormatException", "IOException",
    "NoSuchElementException", "StringIndexOutOfBoundsException", "ArrayIndexOutOfBoundsException",
)  # fmt: skip
EXCEPTIONS = {**dict.fromkeys(_UNCHECKED, "IllegalStateException"),
              "IllegalStateException": "IllegalArgumentException"}  # fmt: skip
"""Exception of the standard library → another one; nothing is both, as classes have one parent."""
BROAD = frozenset({"Throwable", "Error", "AssertionError", "AssertionFailedError"})
"""Types whose handlers catch failed assertions."""
