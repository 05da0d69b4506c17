"""Asynchronous indexing (RFC-45), its pure rules: which indexes, holes, catch-up, readiness, writers' settings."""
