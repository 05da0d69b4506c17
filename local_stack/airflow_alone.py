"""An Airflow in which this provider is not installed: the same versions of everything else, by links."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from local_stack.airflow import LocalAirflow
from local_stack.processes import wait_until

_COMMAND = """#!{python}
import sys
from airflow.__main__ import main
sys.argv[0] = "airflow"
main()
"""


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with links to all packages of this one but the provider's; return its programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = Path(sysconfig.get_path("purelib"))
    target = folder / "lib" / packages.parent.name / "site-packages"
    for entry in packages.iterdir():
        if "airflow_lake_provider" not in entry.name:
            (target / entry.name).symlink_to(entry)
    programs = folder / "bin"
    airflow = programs / "airflow"
    airflow.write_text(_COMMAND.format(python=programs / "python"))
    airflow.chmod(0o755)
    return programs


@dataclass
class AirflowAlone(LocalAirflow):
    """An Airflow with the programs of `make_environment`, the DAGs of `more_dags` and no setting of the provider."""

    programs: Path | None = None

    def env(self) -> dict[str, str]:
        """Return the environment without what belongs to the provider."""
        whole = {key: value for key, value in super().env().items() if not key.startswith("AIRFLOW__LAKE__")}
        name = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
        bundles = [bundle for bundle in json.loads(whole[name]) if bundle["name"] in self.more_dags]
        folder = bundles[0]["kwargs"]["path"]
        return whole | {"PYTHONPATH": "", name: json.dumps(bundles), "AIRFLOW__CORE__DAGS_FOLDER": folder}

    def bin(self) -> Path:
        """Return the folder of `airflow`."""
        return self.programs or super().bin()

    def wait_for_manager(self, timeout_s: float = 180.0) -> None:
        """Wait until the API server answers: there is no manager."""
        servers = list(self.servers.values())
        wait_until(lambda: self.airflow_get("/api/v2/monitor/health") is not None, timeout_s, "Airflow", servers)
