"""Delivery of events: written to a spool, shipped to the server; and requests that come back."""
