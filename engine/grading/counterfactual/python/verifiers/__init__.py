"""False versions of verifiers that are Python programs: their comparisons, and the answers beside them."""
