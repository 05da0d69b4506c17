"""What replication reads of a table."""
