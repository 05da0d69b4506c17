"""Notifications of a service that failed, was ended at its deadline, or is stuck."""
