"""Puts the Spark jobs where their tests find them: as top-level modules, beside the job contract."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "spark_jobs"))
for shared in ("job_contract", "instant_clock"):
    sys.modules[shared] = importlib.import_module(f"airflow_lake_provider.{shared}")
