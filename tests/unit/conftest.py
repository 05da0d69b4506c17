"""Puts the package of the Spark jobs where the driver finds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "spark_jobs"))
