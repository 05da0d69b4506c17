"""The HTTP app that takes notices, and the loop that turns them into DAG runs."""
