"""The committed bundle of the Lake's pages: built of the sources of this tree, small, without addresses."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

from tools.frontend import BUNDLE, SOURCES, digest_sources, find_problem


def test_bundle_belongs_to_its_sources() -> None:
    assert find_problem() == ""


def test_changed_source_and_changed_bundle_are_noticed(tmp_path: Path) -> None:
    sources, bundle = tmp_path / "frontend", tmp_path / "bundle"
    shutil.copytree(SOURCES, sources)
    shutil.copytree(BUNDLE, bundle)
    assert find_problem(sources, bundle) == ""
    script = bundle / "lake.js"
    script.write_bytes(script.read_bytes() + b" ")
    assert "lake.js is not the bundle" in find_problem(sources, bundle)
    source = sources / "src" / "app.tsx"
    source.write_text(source.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert "other sources" in find_problem(sources, bundle)
    assert digest_sources(sources) != digest_sources()


def test_bundle_is_at_most_150_kb_packed_and_takes_react_from_airflow() -> None:
    script = (BUNDLE / "lake.js").read_bytes()
    assert len(gzip.compress(script, 9)) <= 150_000
    text = script.decode()
    assert re.search(r"\(React, *ReactJSXRuntime|React\b.*ReactRouterDOM", text[-400:] + text[:400])
    assert "react.production" not in text


def test_packages_have_exact_versions_and_the_lock_names_no_address() -> None:
    package = json.loads((SOURCES / "package.json").read_text(encoding="utf-8"))
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    lock = (SOURCES / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in lock
    assert "omit-lockfile-registry-resolved=true" in (SOURCES / ".npmrc").read_text(encoding="utf-8")
