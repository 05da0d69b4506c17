"""A home for Airflow that ends with the tests' process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def require_home() -> None:
    """Give Airflow a home of these tests' own, unless another conftest has; before Airflow is imported."""
    if "AIRFLOW_HOME" not in os.environ:
        home = tempfile.mkdtemp(prefix="lake-tests-")
        os.environ["AIRFLOW_HOME"] = home
        atexit.register(shutil.rmtree, home, ignore_errors=True)
