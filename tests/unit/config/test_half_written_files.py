"""A tables file that is being written does not take effect, neither when it changes nor at start-up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_lake_provider.config.tables_source import Settle, TablesSource
from airflow_lake_provider.errors import ConfigError, TablesConfigError
from tests.support.patience import patient

FULL = "tables:\n" + "".join(f"  - {{base_path: /lake/t{n}, clean: {{enabled: false}}}}\n" for n in range(10))
CUT = FULL[: FULL.index("/lake/t3") - len("  - {base_path: ")]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def write(path: Path, text: str, age_s: float = 0.0) -> None:
    path.write_text(text)
    changed_ns = int((time.time() - age_s) * 1e9)
    os.utime(path, ns=(changed_ns, changed_ns))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tables.yaml"
    write(path, FULL, age_s=3600)
    return path


def cleans(source: TablesSource, number: int) -> bool:
    return source.load().policy_for(f"/lake/t{number}", f"t{number}").clean.enabled


def test_file_that_changed_just_now_takes_effect_when_it_has_settled(path: Path) -> None:
    clock = Clock()
    source = TablesSource(str(path), monotonic_s=clock, settle=Settle(2.0, 60.0))
    assert not cleans(source, 1)
    write(path, FULL.replace("enabled: false", "enabled: true"), age_s=-30)  # the file server's clock is ahead
    assert not cleans(source, 1)
    clock.now_s = 1.0
    assert not cleans(source, 1)
    clock.now_s = 2.5
    assert cleans(source, 1)
    assert source.problem == ""


def test_file_that_lost_most_of_its_entries_waits_a_minute_and_says_so(path: Path) -> None:
    clock = Clock()
    source = TablesSource(str(path), monotonic_s=clock, settle=Settle(2.0, 60.0))
    assert not cleans(source, 9)
    write(path, CUT, age_s=10)
    clock.now_s = 10
    assert not cleans(source, 9)
    assert "the file has 3 entries and had 10" in source.problem
    write(path, FULL, age_s=10)  # the writer goes on
    assert not cleans(source, 9)
    assert source.problem == ""
    write(path, CUT, age_s=61)
    assert cleans(source, 9)
    assert source.problem == ""


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_empty_file_never_takes_effect(path: Path, text: str) -> None:
    source = TablesSource(str(path), settle=Settle())
    assert not cleans(source, 1)
    write(path, text, age_s=3600)
    assert not cleans(source, 1)
    assert "the file is empty" in source.problem
    with pytest.raises(ConfigError, match=r"write `tables: \[\]`"):
        TablesSource(str(path), settle=Settle()).load()
    write(path, "tables: []", age_s=3600)
    assert cleans(source, 1)


def test_first_load_waits_for_a_file_that_is_being_written(path: Path) -> None:
    began_s = time.monotonic()
    write(path, FULL)
    assert not cleans(TablesSource(str(path), settle=Settle(0.5, 60.0)), 9)
    assert 0.4 <= time.monotonic() - began_s < patient(5)


def test_file_that_begins_to_be_written_while_the_first_load_waits_does_not_take_effect(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, FULL, age_s=1.0)
    monkeypatch.setattr("airflow_lake_provider.config.tables_source.time.sleep", lambda _: write(path, CUT, age_s=0.5))
    source = TablesSource(str(path), settle=Settle(2.0, 60.0))
    with pytest.raises(TablesConfigError, match="changed while it was read"):
        source.load()
    write(path, FULL, age_s=3)
    assert not cleans(source, 9)
    assert source.problem == ""
