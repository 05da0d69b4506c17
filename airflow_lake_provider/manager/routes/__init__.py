"""Routes of the manager app: parse, call, return. Errors carry their own HTTP status."""
