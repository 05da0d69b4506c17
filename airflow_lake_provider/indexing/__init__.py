"""Asynchronous indexing (RFC-45), its pure rules: which indexes, holes, readiness, writers' settings."""
