"""Facts about one Hudi table, read from storage in pure Python: properties, instants, plans, commit metadata."""
