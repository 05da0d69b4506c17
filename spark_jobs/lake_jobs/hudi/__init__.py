"""A Hudi table through Hudi's Java classes: its state, a client on it, its files, the settings of a service."""
