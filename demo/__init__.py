"""The demo: real writers, real Airflow, real Spark; see `demo.run`."""
