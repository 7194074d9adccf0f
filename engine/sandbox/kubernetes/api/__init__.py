"""Requests to the API server: the client, its errors, its retries, and the account's known rights."""
