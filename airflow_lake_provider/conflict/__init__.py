"""Early conflict detection (RFC-56): which writers touch which file groups, and what that means for the services."""
