"""What runs a job: spark-submit, YARN, Kubernetes, a process of this machine, warm Spark, Flink (experimental)."""
