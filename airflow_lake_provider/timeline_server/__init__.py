"""Timelines shared by all readers (RFC-50): cache, server, client, and views."""
