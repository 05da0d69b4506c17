"""Stores that hold tables: local disks, HDFS, S3-compatible stores, and what fsspec opens."""
