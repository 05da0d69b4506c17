"""Table management service for Apache Hudi lakes, as an Apache Airflow provider."""

__version__ = "0.1.0"
