"""Who is told when a service failed, was ended at its deadline, or is stuck."""
