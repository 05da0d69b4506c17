"""A home for Airflow, should no other conftest have given it one; Airflow itself is imported by tests, not before."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="lake-engines-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
