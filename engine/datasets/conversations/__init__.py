"""Training conversations in one common form, read from and written to the formats of other trainers."""
