"""Operators that run table services."""
