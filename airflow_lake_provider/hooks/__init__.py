"""Connections to the manager."""
