"""The toy task of the hostile submissions."""

from tests.integration.adversary.conftest import adversary_home, adversary_row

__all__ = ["adversary_home", "adversary_row"]
