"""`airflow lake dag-bundles`: the setting that adds the shipped DAGs to those that Airflow has. Changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow.configuration import conf

from airflow_lake_provider.plugins.dag_bundle import with_lake_bundle

if TYPE_CHECKING:
    from argparse import Namespace


def dag_bundles(args: Namespace) -> None:
    """Print `[dag_processor] dag_bundle_config_list` as it is here, with the shipped DAGs added."""
    configured = conf.getjson("dag_processor", "dag_bundle_config_list") or []
    lines = [f"    {json.dumps(bundle)}" for bundle in with_lake_bundle(list(configured))]  # type: ignore[arg-type]
    print("[dag_processor]\ndag_bundle_config_list = [\n" + ",\n".join(lines) + "\n    ]")
