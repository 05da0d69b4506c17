"""What state a table is in, why, and what to do; pure."""
