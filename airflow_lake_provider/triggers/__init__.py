"""Triggers of the sensors."""
