"""Facts of a Hudi table, read in pure Python: timeline, properties, plans, markers, heartbeats."""
