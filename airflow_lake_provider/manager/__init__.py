"""The HTTP app that receives notices, and the loop that turns them into DAG runs."""
