"""What Maven says is shortened to its first error."""

from __future__ import annotations

from local_stack.maven import find_cause

SAID = """\
[INFO] Scanning for projects...
[ERROR]
[ERROR] Failed to execute goal on project x: Could not resolve dependencies: Could not transfer artifact a:b:pom:1
[ERROR]
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
"""


def test_cause_is_the_first_error() -> None:
    assert find_cause(SAID).startswith("Failed to execute goal on project x: Could not resolve")
    assert find_cause("mvn: no such Java") == "mvn: no such Java"
