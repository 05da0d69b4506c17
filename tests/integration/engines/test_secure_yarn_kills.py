"""Kills on a real YARN that takes no client without a ticket: the compaction is done once, and its rows are as before.

What each kill is, and what is required: test_yarn_kills.py. The next try, the application master that takes its place
and the ResourceManager that starts again all have to log in once more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local_stack.writer_process import StandingWriter
from tests.integration.engines.realm_stage import SecureYarnStage, realm_stage
from tests.support.yarn_kills import CLIENT, strike_and_require

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/engines/test_clusters.py")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureYarnStage]:
    with realm_stage(tmp_path_factory, has_yarn=True) as stage:
        yield stage


@pytest.fixture(scope="module")
def reader(stage: SecureYarnStage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingWriter]:
    """A reader with a ticket of its own."""
    login = {"spark.kerberos.principal": stage.kerberos.client, "spark.kerberos.keytab": str(stage.kerberos.keytab)}
    jvm = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC " + " ".join(stage.kerberos.jvm_options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", stage.conf)
        reader = StandingWriter(tmp_path_factory.mktemp("reader"), {**login, "spark.driver.extraJavaOptions": jvm})
    with reader:
        yield reader


@pytest.mark.parametrize("moment", ["early", "in-the-middle"])
@pytest.mark.parametrize("kill", ["driver", "worker", "resource-manager"])
def test_compaction_is_done_once_whatever_is_killed(
    stage: SecureYarnStage, reader: StandingWriter, kill: str, moment: str
) -> None:
    number = ("early", "in-the-middle").index(moment)
    strike_and_require(stage, reader, f"orders-{kill}-{moment}", CLIENT[kill], number)


@pytest.mark.parametrize("kill", ["driver", "worker", "resource-manager", "application-master"])
def test_compaction_in_client_mode_is_done_once_whatever_is_killed(
    stage: SecureYarnStage, reader: StandingWriter, monkeypatch: pytest.MonkeyPatch, kill: str
) -> None:
    monkeypatch.setattr(stage, "deploy_mode", "client")
    strike_and_require(stage, reader, f"clicks-{kill}", CLIENT[kill], 0)
