"""The sinks that come with this package."""
