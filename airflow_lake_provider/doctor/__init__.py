"""What is stuck on a table's timeline, what it holds up, and what to do about it."""
