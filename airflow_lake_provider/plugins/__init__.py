"""What only Airflow loads: the mounted app, the DB manager, the door to DAG runs."""
