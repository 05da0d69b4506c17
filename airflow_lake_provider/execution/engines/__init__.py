"""What runs a job: spark-submit, a process of this machine, Flink (experimental)."""
