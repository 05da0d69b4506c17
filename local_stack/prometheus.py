"""Debian's Prometheus, unpacked below `.work` and not installed: nothing of it is started by the system.

`python -m local_stack.prometheus` fetches it, or says what to do.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "prometheus"


def fetch() -> Path:
    """Return the folder with `prometheus` and `promtool`, after unpacking Debian's package if it is missing."""
    on_path = shutil.which("promtool")
    if on_path is not None and shutil.which("prometheus") is not None:
        return Path(on_path).parent
    programs = WORK / "usr" / "bin"
    if (programs / "promtool").exists():
        return programs
    if shutil.which("apt-get") is None:
        raise SystemExit("Prometheus is missing: install prometheus and promtool")
    WORK.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "download", "-qq", "prometheus"], check=True, cwd=WORK)
    (package,) = WORK.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(WORK)], check=True)
    package.unlink()
    return programs


if __name__ == "__main__":
    print(fetch())
