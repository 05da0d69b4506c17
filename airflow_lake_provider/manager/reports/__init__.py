"""What commands, pages and metrics show of the lake."""
