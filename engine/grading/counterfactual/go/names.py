"""Names of Go's assertion libraries, with their meaning for mutation."""

from __future__ import annotations

from engine.grading.counterfactual.pairs import both_ways

FAILS = frozenset({"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"})
"""Methods of a test's context that fail it."""
ENDS = frozenset({"Skip", "Skipf", "SkipNow", "Goexit", "Exit"})
"""Methods and functions that end a test without failing it."""
LIBRARIES = (b"stretchr/testify", b"gotest.tools", b"matryer/is", b"alecthomas/assert")
"""Parts of the paths of packages whose assertions are known."""
PACKAGES = frozenset({"assert", "require", "is"})
"""Packages and variables with assertions; ``assert.Equal(t, …)`` and ``assert.New(t).Equal(…)``."""
EQUAL = {
    "Equal": "NotEqual", "EqualValues": "NotEqualValues", "Exactly": "", "EqualError": "", "JSONEq": "",
}  # fmt: skip
"""Assertion that its two arguments are equal → its opposite, empty where there is none."""
OPPOSITES = both_ways(
    ("True", "False"), ("Nil", "NotNil"), ("NoError", "Error"), ("Empty", "NotEmpty"),
    ("Contains", "NotContains"), ("Zero", "NotZero"), ("Panics", "NotPanics"), ("Same", "NotSame"),
    ("ErrorIs", "NotErrorIs"), ("Regexp", "NotRegexp"),
)  # fmt: skip
"""Assertion → one that fails where it passes, with the same arguments."""
COMPARES = frozenset({"reflect.DeepEqual", "bytes.Equal", "slices.Equal", "maps.Equal"})
"""Functions that say whether their two arguments are equal."""
CONVERSIONS = frozenset({
    "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "float64",
    "float32", "string", "byte", "rune", "uintptr", "errors.New", "json.RawMessage",
})  # fmt: skip
"""Calls around a literal that keep different values different."""
_OTHER_STATUS = both_ways(
    ("OK", "Accepted"), ("Created", "NoContent"), ("BadRequest", "NotFound"), ("Unauthorized", "Forbidden"),
    ("InternalServerError", "NotImplemented"), ("BadGateway", "ServiceUnavailable"),
    ("MovedPermanently", "Found"), ("TemporaryRedirect", "SeeOther"), ("Conflict", "Gone"),
)  # fmt: skip
STATUSES = {f"http.Status{name}": f"http.Status{other}" for name, other in _OTHER_STATUS.items()}
"""Constant of ``net/http`` → another one."""
