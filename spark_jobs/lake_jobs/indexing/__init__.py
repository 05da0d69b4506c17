"""Asynchronous indexing (RFC-45)."""
