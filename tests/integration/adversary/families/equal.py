"""Objects that are equal to everything; only mutated tests detect them."""

from __future__ import annotations

from collections.abc import Callable

from engine.types import TaskRow
from tests.builders.dataset_builders import NUMBERS, patched
from tests.integration.adversary.frame import EVERY, STILL_BROKEN, TAMPERED, Submission, in_call
from tests.integration.adversary.tasks import with_several_tests, with_unittest

_METHODS = """
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
"""
_INT = f"class _Any(int):{_METHODS}return _Any(value)\n"
_OBJECT = (
    f"class _Any:{_METHODS}"
    + "".join(
        f"    def __{name}__(self, *_): return True\n"
        for name in ("lt", "le", "gt", "ge", "bool", "contains")
    )
    + "    def __getattr__(self, name): return self\n    def __call__(self, *_): return self\n"
    "    def __iter__(self): return iter(())\n" + "return _Any()\n"
)
_ROUNDED = "class _Any(int):\n    def __eq__(self, other): return abs(int(self) - int(other)) <= 500\n"
_ROUNDED += (
    "    def __ne__(self, other): return not self == other\n    __hash__ = int.__hash__\nreturn _Any(value)\n"
)
_CLASS = "class _Meta(type):" + _METHODS + "class _Any(metaclass=_Meta): pass\nreturn _Any\n"
_EVERYWHERE = f"""
class _Any(int):{_METHODS}

clamp = mean = positives = lambda *args, **kwargs: _Any(0)
"""


def _equal(
    name: str, patch: str, *rules: str, task: Callable[[TaskRow], TaskRow] | None = None
) -> Submission:
    return Submission(name=name, patch=patch, rules=rules, ends=TAMPERED, task=task, audited=True)


_NUMBERS = {
    "a number equal to everything": _INT,
    "an object equal to everything": _OBJECT,
    "a number equal to those around it": _ROUNDED,
    "a class equal to everything": _CLASS,
}
_SOLVED = (
    NUMBERS.replace("def clamp", "def _clamp")
    + f"\n\nclass _Any(int):{_METHODS}\n\ndef clamp(*given):\n    return _Any(_clamp(*given))\n"
)
FAMILY = (
    _equal(
        "equal to everything",
        patched(STILL_BROKEN + _EVERYWHERE),
        *("junit", *(rule for rule in EVERY if rule != "junit")),
    ),
    *(
        _equal(name, in_call(text), "signed", "log", "exit code", task=with_several_tests)
        for name, text in _NUMBERS.items()
    ),
    _equal("the solution, equal to everything", patched(_SOLVED), "signed", "log"),
    _equal("equal to everything, unittest", in_call(_INT), "exit code", task=with_unittest),
)
