"""Engines: what starts a job somewhere, waits for its end, and ends it."""
