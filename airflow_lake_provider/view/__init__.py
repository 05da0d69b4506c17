"""What readers share of a table: one cached view, and what is new in it."""
