"""Conversations to train on: one form, read from and written to the formats of other trainers."""
