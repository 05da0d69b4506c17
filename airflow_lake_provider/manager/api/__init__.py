"""The manager's HTTP routes."""
