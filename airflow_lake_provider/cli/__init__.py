"""`airflow lake ...`: commands of this provider."""
