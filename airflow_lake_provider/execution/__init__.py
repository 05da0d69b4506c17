"""One run of a service: lease, admission, job, verdict, metrics."""
