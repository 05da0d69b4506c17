"""Sensors on a table's timeline."""
