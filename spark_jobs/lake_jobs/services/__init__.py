"""The table services, one module each."""
