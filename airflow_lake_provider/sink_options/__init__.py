"""The options of an entry of `replication`, by sink: which there are, and what each may be.

The tables file is checked by these as it is read, and the run builds its sink by them. They travel to Spark's driver
with the sinks, and need the standard library alone.
"""
