"""Pages in Airflow's UI: all tables, and one table with its services, instances, sinks and timeline. Read only."""
