"""Build the app of the Lake's pages from `frontend/` into the package, and check that the two belong together.

    python -m tools.frontend             # install its packages, build, record (make ui; it needs Node 20 and npm)
    python -m tools.frontend --install   # the packages and the test page only (make test, where npm is installed)
    python -m tools.frontend --check     # exit code 1 when the bundle is not built of these sources (make check)

The bundle is committed, so that an installation with pip needs no Node. Packages, caches and copies lie in
`.work/frontend`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "frontend"
WORK = ROOT / ".work" / "frontend"
BUNDLE = ROOT / "airflow_lake_provider" / "ui" / "bundle"
RECORD = "sources.sha256"
_COPIED = ("package.json", "package-lock.json", ".npmrc", "tsconfig.json", "vite.config.ts", "src")


def digest_sources(folder: Path = SOURCES) -> str:
    """Return one hash of all files that the bundle is built of."""
    digest = hashlib.sha256()
    for name in _COPIED:
        path = folder / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(f"{file.relative_to(folder).as_posix()}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def find_problem(sources: Path = SOURCES, bundle: Path = BUNDLE) -> str:
    """Return why the bundle does not belong to the sources; empty when it does."""
    record = bundle / RECORD
    if not record.is_file():
        return f"{record} is missing: run make ui"
    recorded = dict(line.split()[::-1] for line in record.read_text(encoding="utf-8").splitlines())
    if recorded.get("frontend") != digest_sources(sources):
        return "the bundle was built of other sources than frontend/ has: run make ui"
    if recorded.get("lake.js") != hashlib.sha256((bundle / "lake.js").read_bytes()).hexdigest():
        return "lake.js is not the bundle that make ui recorded: run make ui"
    return ""


def find_npm() -> str | None:
    """Return npm's path; None where Node 20 or later is not installed."""
    return shutil.which("npm") if shutil.which("node") else None


def copy_sources() -> None:
    """Bring the copy in the work folder up to date, next to its packages."""
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(WORK / "src", ignore_errors=True)
    for name in _COPIED:
        source = SOURCES / name
        if source.is_dir():
            shutil.copytree(source, WORK / name)
        else:
            shutil.copyfile(source, WORK / name)


def install() -> None:
    """Install the packages of the lock file, unless they are."""
    stamp = WORK / ".installed"
    locked = hashlib.sha256((SOURCES / "package-lock.json").read_bytes()).hexdigest()
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != locked:
        run("npm", "ci", "--no-audit", "--no-fund", "--cache", str(WORK / "npm"))
        stamp.write_text(locked, encoding="utf-8")


def run(*command: str) -> None:
    """Run a command in the work folder; its output appears only when it fails. Raises SystemExit."""
    env = os.environ | {"NO_COLOR": "1", "BROWSERSLIST_IGNORE_OLD_DATA": "1"}
    result = subprocess.run(command, cwd=WORK, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")


def build() -> bytes:
    """Check the types, and return the bundle."""
    run("npx", "--no-install", "tsc", "--noEmit", "-p", "tsconfig.json")
    run("npx", "--no-install", "vite", "build")
    return (WORK / "dist" / "lake.js").read_bytes()


def build_host() -> None:
    """Build the page that stands for Airflow's in tests."""
    run("npx", "--no-install", "vite", "build", "--mode", "host")


def install_for_tests() -> int:
    """Install what the browser's tests need; without it they skip, and say so."""
    try:
        install()
        build_host()
    except SystemExit as error:
        shutil.rmtree(WORK / "node_modules", ignore_errors=True)
        print(f"the browser's tests will be skipped: {error}")
    return 0


def check() -> str:
    """Return what is wrong with the bundle; where its packages are installed, it is rebuilt and compared."""
    problem = find_problem()
    if problem or find_npm() is None or not (WORK / ".installed").is_file():
        return problem
    copy_sources()
    install()
    is_same = build() == (BUNDLE / "lake.js").read_bytes()
    return "" if is_same else "a rebuild of frontend/ gives another bundle than the committed one: run make ui"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--install", action="store_true", help="install the packages and build the page of the tests")
    args = parser.parse_args()
    if args.check:
        problem = check()
        print(problem or "the bundle of the Lake's pages is built of frontend/")
        return 1 if problem else 0
    if find_npm() is None:
        print("Node and npm are not installed; the committed bundle is used as it is")
        return 0 if args.install else 1
    copy_sources()
    if args.install:
        return install_for_tests()
    install()
    build_host()
    script = build()
    (BUNDLE / "lake.js").write_bytes(script)
    record = f"{digest_sources()}  frontend\n{hashlib.sha256(script).hexdigest()}  lake.js\n"
    (BUNDLE / RECORD).write_text(record, encoding="utf-8")
    print(f"{BUNDLE / 'lake.js'}: {len(script):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
