"""What the manager needs of Airflow's DAGs and runs."""
