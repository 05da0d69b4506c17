"""How names of Java are found from Python: asked for once, and static methods whatever else has their name."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from py4j.protocol import STATIC_PREFIX, Py4JError

from lake_jobs.driver.standing import keep_attributes


def prepare_java_names() -> None:
    """Have this process find names of Java once, and every static method."""
    # For each part of `jvm.org.apache.hudi.X` py4j has the JVM search all jars of Spark for a class, each time: a fifth
    # of all work of a small service.
    for owner in (JVMView, JavaPackage):
        keep_attributes(owner, (JavaPackage, JavaClass))
    if not hasattr(JavaClass.__getattr__, "__wrapped__"):
        find_every_static_method()


def find_every_static_method() -> None:
    """Have a class give a static method although it has another one of the same name that is not static.

    py4j reads one method of a name alone, and says that the name "does not exist in the JVM" when that one is not
    static. Which one it is differs from one JVM to the next: `HoodieTableMetaClient` has two `reload`. A call chooses
    by its arguments, and fails as such where there is no method of the name at all.
    """
    find = JavaClass.__getattr__

    def find_or_call(self: JavaClass, name: str) -> Any:
        try:
            return find(self, name)
        except Py4JError:
            if not name[0].islower():
                raise
            return JavaMember(name, None, f"{STATIC_PREFIX}{self._fqn}", self._gateway_client)

    find_or_call.__wrapped__ = find  # type: ignore[attr-defined]
    JavaClass.__getattr__ = find_or_call
