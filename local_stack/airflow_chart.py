"""Airflow's official Helm chart, helm, and a stand-in for the image of docker/ that the chart's pods run.

`python -m local_stack.airflow_chart` makes them in `.work` (nothing to do when they are there): helm is compiled from
Go's module proxy, the chart comes from Airflow's site or is the archive or folder that `LAKE_AIRFLOW_CHART` names, and
the image is that of Spark's pods with the packages that docker/ pins.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_stack.hudi_bundle import JAR, find_spark_home
from local_stack.kubernetes import LocalKubernetes
from local_stack.kubernetes_build import BUILT, ROOT_OF_IMAGES, ClusterMissingError, run, write_image

ROOT = Path(__file__).parent.parent
HELM = BUILT / "bin" / "helm"
HELM_MODULE = "helm.sh/helm/v3/cmd/helm@v3.18.4"
CHART_VERSION = "1.22.0"
CHART = BUILT / f"airflow-{CHART_VERSION}.tgz"
VALUES = ROOT / "docker" / "helm" / "values.yaml"
IMAGE = "docker.io/lake/airflow-kubernetes:local"
USER = 50_000
"""Airflow's user of the image; its group is 0."""
IMAGE_ARCHIVE = BUILT / "airflow.tar"
_VENV = "/opt/airflow-venv"
_PROGRAMS = {
    f"{_VENV[1:]}/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n",
    f"{_VENV[1:]}/bin/airflow": f"#!{_VENV}/bin/python\nfrom airflow.__main__ import main\n\nmain()\n",
    # The chart's probes call the official image's.
    "entrypoint": '#!/bin/sh\nexec "$@"\n',
}


def build() -> None:
    """Make what is not there yet, after `kubernetes_build.build`. Raises ClusterMissingError."""
    if not HELM.exists():
        run(["go", "install", HELM_MODULE], os.environ | {"GOBIN": str(HELM.parent)})
    if not _chart().exists():
        run([str(HELM), "pull", "airflow", "--repo", "https://airflow.apache.org", "--version", CHART_VERSION,
             "--destination", str(BUILT)], os.environ)  # fmt: skip
    if not IMAGE_ARCHIVE.exists():
        _build_image()


def install_provider(folder: Path) -> None:
    """Install this checkout as the image's last layer does. Raises ClusterMissingError."""
    _install("--target", str(folder), "--no-deps", str(ROOT))


@dataclass(frozen=True)
class ChartRelease:
    """One release of the chart in a cluster."""

    cluster: LocalKubernetes
    namespace: str
    name: str

    def install(self, values: Mapping[str, Any], folder: Path) -> None:
        """Install it, or upgrade it; waits for nothing. Raises ClusterMissingError with helm's words."""
        path = folder / "values.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        where = ["--kubeconfig", str(self.cluster.admin_config), "--namespace", self.namespace]
        run([str(HELM), "upgrade", "--install", self.name, str(_chart()), *where, "--values", str(path)], os.environ)

    def pods(self, component: str = "") -> list[dict[str, Any]]:
        """Return its pods, or those of a component, as `scheduler`; `worker`: those of tasks."""
        selector = f"release={self.name}" + (f",component={component}" if component else "")
        return self.cluster.items("pods", self.namespace, "-l", selector)

    def kill(self, pod: Mapping[str, Any]) -> None:
        """Kill a pod's processes, and forget the pod, as when its node is lost."""
        name = pod["metadata"]["name"]
        how = ("--grace-period=0", "--force", "--wait=false")
        self.cluster.kubectl("-n", self.namespace, "delete", "pod", name, *how)


def _chart() -> Path:
    return Path(os.environ.get("LAKE_AIRFLOW_CHART", str(CHART)))


def _build_image() -> None:
    part = BUILT / "airflow-root.part"
    shutil.rmtree(part, ignore_errors=True)
    for name, text in _PROGRAMS.items():
        path = part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    (part / _VENV[1:] / "bin" / "python").symlink_to("/usr/bin/python3")
    pins = [word for name in ("airflow.txt", "helm/kubernetes.txt") for word in ("-r", str(ROOT / "docker" / name))]
    _install(
        "--target",
        str(part / _VENV[1:] / "lib" / "python3.11" / "site-packages"),
        "--no-deps",
        *pins,
        "--compile-bytecode",
    )
    (part / "etc").mkdir()
    users = (ROOT_OF_IMAGES / "etc" / "passwd").read_text(encoding="utf-8")
    (part / "etc" / "passwd").write_text(f"{users}airflow:x:{USER}:0::/tmp:/bin/bash\n", encoding="utf-8")
    (part / "opt" / "airflow").mkdir()
    (part / "opt" / "airflow").chmod(0o775)
    files = {
        "/": ROOT_OF_IMAGES,
        "/opt/spark": find_spark_home(),
        f"/opt/spark/jars/{JAR.name}": JAR,
        **{f"/{name}": part / name for name in ("etc/passwd", "entrypoint", "opt")},
    }
    programs = f"{_VENV}/bin:/opt/spark/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    spark = ["SPARK_HOME=/opt/spark", "SPARK_CONF_DIR=/etc/spark", "SPARK_LOCAL_DIRS=/var/lib/spark"]
    python = ["PYSPARK_PYTHON=/usr/bin/python3", "PYSPARK_DRIVER_PYTHON=/usr/bin/python3"]
    settings = {"User": f"{USER}:0", "WorkingDir": "/opt/airflow", "Env": [f"PATH={programs}", *spark, *python]}
    write_image(IMAGE_ARCHIVE, IMAGE, files, settings)
    shutil.rmtree(part)


def _install(*arguments: str) -> None:
    uv = Path(sys.executable).parent / "uv"
    run([str(uv), "pip", "install", "--quiet", "--python", sys.executable, *arguments], os.environ)


def main() -> int:
    try:
        build()
    except ClusterMissingError as error:
        print(error, file=sys.stderr)
        return 1
    print(CHART, IMAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
