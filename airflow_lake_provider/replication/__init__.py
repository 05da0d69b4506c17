"""Replicate a table's changes to Kafka or elsewhere, exactly once, and hold the lake's cleaning back meanwhile.

This folder travels to Spark's driver together with `errors.py`, because the driver is where changes are
read and written: it needs the standard library only, and each sink imports its own client when it is opened.
"""
