"""Fetch the Hudi bundle once, straight from Maven Central: no Maven or Ivy, whose caches may be spoiled.

`python -m local_stack.hudi_bundle` puts the jar in place (nothing to do when it is there) and prints its path;
`--check` only prints the path and exits with 1 when the jar is missing; `--version 1.0.2` is for another version;
`--classes` makes what small drivers start sooner and write quicker with: archives of the classes of Spark and of Hudi,
and the jar of quick files.

`LAKE_HUDI_BUNDLE` names another bundle to run everything on, such as that of a next release (`make next-hudi`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from local_stack.maven_central import DownloadError, download

ARTIFACT = "hudi-spark3.5-bundle_2.12"
VERSION = "1.2.0"
S3A = ("hadoop-aws-3.3.4.jar", "aws-java-sdk-bundle-1.12.262.jar")
"""Of the Hadoop that Spark 3.5 brings along."""
KAFKA_SOURCE = (
    "spark-sql-kafka-0-10_2.12-3.5.7.jar",
    "spark-token-provider-kafka-0-10_2.12-3.5.7.jar",
    "kafka-clients-3.4.1.jar",
    "commons-pool2-2.11.1.jar",
)
"""Spark's own source and sink of Kafka, with what Spark lacks for it."""

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".work"
JARS = WORK / "jars"
SPARK_PYTHON = ROOT / ".venv-spark" / "bin" / "python"
TIMEOUT_S = 900
OLDER_VERSIONS = ("1.1.1", "1.0.2")
"""Other writers' versions, which tests run together with the default one."""


def jar_of(version: str) -> Path:
    """Return the path of a version's bundle, existing or not."""
    return JARS / f"{ARTIFACT}-{version}.jar"


BUNDLE_VARIABLE = "LAKE_HUDI_BUNDLE"


def bundle_jar(environment: Mapping[str, str]) -> Path:
    """Return the bundle that an environment names, or the default one; existing or not."""
    named = environment.get(BUNDLE_VARIABLE)
    return Path(named).resolve() if named else jar_of(VERSION)


def hudi_classes_of(jar: Path) -> Path:
    """Return the path of a bundle's archive of classes, existing or not: each bundle has its own."""
    if jar.resolve() == jar_of(VERSION).resolve():
        return JARS / "hudi-classes.jsa"
    address = hashlib.sha256(str(jar).encode()).hexdigest()[:12]
    return JARS / f"hudi-classes-{jar.stem}-{address}.jsa"


JAR = bundle_jar(os.environ)
CLASSES = JARS / "spark-classes.jsa"
"""Spark's classes as the JVM keeps them in memory, for this checkout's Spark and this machine's Java."""
HUDI_CLASSES = hudi_classes_of(JAR)
"""With Hudi's among them: for drivers that have the bundle first on their class path (`bundle_first`)."""
QUICK_FILES = JARS / "quick-files.jar"
"""Hadoop's local files without a process for each new file, and hardly any of Hadoop's default settings."""
HIDDEN_SETTINGS = re.compile(
    r"(fs\.(s3a\.(?!impl)|viewfs|adl|azure|abfs|ftp|wasb)|hadoop\.(http|registry|ssl|zk)|ha|ipc\.\[port_number\])\b.*"
)
"""Defaults of Hadoop that nothing here asks for, or that its code has as well."""

QUICK_JVM = (
    "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
    " -Djol.skipHotspotSAAttach=true -Djol.skipDynamicAttach=true -Djol.skipInstallAttach=true"
)


class BundleError(RuntimeError):
    """What the bundle needs is not here or cannot be made; the message holds the end of the report."""


def find_spark_home(python: Path = SPARK_PYTHON) -> Path:
    """Return the Spark that a Python environment holds. Raises BundleError."""
    # The same path from every checkout that shares an environment: the archive below depends on it.
    homes = sorted(python.parent.parent.resolve().glob("lib/python*/site-packages/pyspark"))
    if not homes:
        raise BundleError(f"there is no pyspark next to {python}: run `make install`")
    return homes[0]


def spark_env(python: Path = SPARK_PYTHON, classes: Path = CLASSES) -> dict[str, str]:
    """Return this process's environment with Spark's own variables set: otherwise its scripts find another Python."""
    return {
        **os.environ,
        "SPARK_HOME": str(find_spark_home(python)),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_SUBMIT_OPTS": jvm_options(classes),
    }


def jvm_options(classes: Path = CLASSES) -> str:
    """Return the options that make a driver of a small job start soon: little is compiled, known classes are mapped.

    Hudi would attach a debugger to each JVM of its own to measure objects, and fail.
    """
    options = QUICK_JVM
    if classes.exists():
        # The JVM ignores one of another Java or Spark, and would print that on the standard output.
        options += f" -XX:SharedArchiveFile={classes} -Xlog:disable -Xlog:all=error:stderr"
    return options


def bundle_first() -> dict[str, str]:
    """Return the settings of a driver with the bundle first on its class path, and with quick files.

    From a jar that Spark adds later, no class can be archived; and each of Spark's 250 jars would be searched for every
    class of Hudi.
    """
    if not QUICK_FILES.exists():
        return {"spark.driver.extraClassPath": str(JAR)}
    return {
        "spark.driver.extraClassPath": f"{QUICK_FILES}:{JAR}",
        "spark.executor.extraClassPath": f"{QUICK_FILES}:{JAR}",
        "spark.hadoop.fs.file.impl": "lake.QuickFiles",
    }


def quick_conf() -> dict[str, str]:
    """Return the settings with which a driver that Spark starts finds all of its classes archived, Hudi's as well."""
    if not HUDI_CLASSES.exists():
        return {}
    return {**bundle_first(), "spark.driver.extraJavaOptions": f"-XX:SharedArchiveFile={HUDI_CLASSES}"}


def scratch_env(folder: Path, classes: Path = CLASSES) -> dict[str, str]:
    """Return the variables that keep the scratch files of Python, Spark and its JVMs in one folder."""
    in_folder = f"-Djava.io.tmpdir={folder}"
    return {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_SUBMIT_OPTS": f"{in_folder} {jvm_options(classes)}",
        "SPARK_LAUNCHER_OPTS": f"{in_folder} -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def fetch(version: str = VERSION) -> Path:
    """Put a version's bundle in place unless it is there, and return its path. Raises DownloadError."""
    return download(jar_of(version).name, JARS)


def with_jars(names: Sequence[str]) -> str:
    """Return the value of `spark.jars` for the bundle and more jars, which are put in place. Raises DownloadError."""
    return ",".join(str(jar) for jar in (JAR, *(download(name, JARS) for name in names)))


def make_quick_files() -> None:
    """Compile the quick files into their jar, where Java's compiler is installed. Raises BundleError.

    Hudi's tasks bring all settings of Hadoop along, and reading them is a sixth of the work of a small one: so the jar
    also hides those of YARN, MapReduce and HDFS, and most others.
    """
    javac = shutil.which("javac")
    if javac is None:
        return
    hadoop = next((find_spark_home() / "jars").glob("hadoop-client-api-*.jar"))
    with tempfile.TemporaryDirectory() as scratch:
        command = [javac, "--release", "11", "-proc:none", "-cp", str(hadoop), "-d", scratch]
        command.append(str(ROOT / "local_stack" / "QuickFiles.java"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise BundleError(f"cannot compile the quick files\n{done.stderr}")
        part = QUICK_FILES.with_suffix(f".{os.getpid()}.part")
        with zipfile.ZipFile(part, "w") as jar:
            for path in sorted(Path(scratch).rglob("*.class")):
                jar.write(path, path.relative_to(scratch))
            for system in ("hdfs", "hdfs-rbf", "mapred", "yarn"):
                jar.writestr(f"{system}-default.xml", "<configuration/>")
            jar.writestr("core-default.xml", _fewer_settings(hadoop))
        part.replace(QUICK_FILES)


def _fewer_settings(hadoop: Path) -> str:
    with zipfile.ZipFile(hadoop) as archive:
        settings = ElementTree.fromstring(archive.read("core-default.xml"))
    for entry in settings.findall("property"):
        for description in entry.findall("description"):
            entry.remove(description)
        if HIDDEN_SETTINGS.fullmatch(entry.findtext("name", "")):
            settings.remove(entry)
    return ElementTree.tostring(settings, encoding="unicode")


def archive_classes() -> Path:
    """Write a small table through spark-submit, and archive the loaded classes. Raises BundleError."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "settings.json"
        table = {"name": "orders", "base_path": f"{scratch}/orders", "commits": 2, "keys": 40, "rows": 8, "pause_s": 0}
        settings.write_text(json.dumps({"tables": [table]}), encoding="utf-8")
        return _archive(CLASSES, ["--jars", str(JAR)], ["lake_writer.py", str(settings)], Path(scratch))


def archive_hudi_classes() -> Path:
    """Write, serve and read a small table through spark-submit, and archive the loaded classes. Raises BundleError."""
    with tempfile.TemporaryDirectory() as scratch:
        conf = [word for name, value in bundle_first().items() for word in ("--conf", f"{name}={value}")]
        conf += ["--jars", str(JAR)]
        return _archive(HUDI_CLASSES, conf, ["table_tour.py", f"{scratch}/orders"], Path(scratch))


def _archive(path: Path, conf: list[str], application: list[str], scratch: Path) -> Path:
    part = path.with_suffix(f".{os.getpid()}.part")
    env = spark_env() | scratch_env(scratch)
    env["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={part} -Xlog:disable -Xlog:all=error:stderr"
    command = [f"{env['SPARK_HOME']}/bin/spark-submit", "--master", "local[1]", *conf]
    command += [str(ROOT / "local_stack" / application[0]), *application[1:]]
    # Spark makes a folder for its warehouse where it runs.
    run = subprocess.run(command, cwd=scratch, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if run.returncode != 0 or not part.exists():
        raise BundleError(f"cannot archive Spark's classes\n{run.stdout[-1000:]}{run.stderr[-3000:]}")
    part.replace(path)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="print the path, fetch nothing")
    parser.add_argument("--classes", action="store_true", help="what makes JVMs of small tables quick")
    parser.add_argument("--version", default=VERSION, help="Hudi's version")
    options = parser.parse_args()
    if options.check:
        jar = jar_of(options.version)
        print(jar)
        return 0 if jar.exists() else 1
    try:
        if options.classes:
            make_quick_files()
            print(archive_classes(), archive_hudi_classes(), sep="\n")
        else:
            print(fetch(options.version))
    except (BundleError, DownloadError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
