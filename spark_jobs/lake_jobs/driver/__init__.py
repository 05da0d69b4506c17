"""The driver as a process: its files, its progress lines, its failures, its end."""
