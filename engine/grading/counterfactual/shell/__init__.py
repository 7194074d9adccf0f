"""False versions of verifiers written in bash: their comparisons, and the answers that lie beside them."""
