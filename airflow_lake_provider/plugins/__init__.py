"""What only Airflow loads: the mounted app, the DB manager, the gateway to DAG runs."""
