"""The manager's tables in Airflow's metadata database."""
