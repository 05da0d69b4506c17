"""What a job's output says of its Kerberos login: lines as Spark 3.5 with Hadoop 3.3 and Java 17 prints them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_lake_provider.errors import EngineAwayError, EngineError, ServiceRefusedError
from airflow_lake_provider.execution.engines.engine import Death, Login, error_of, find_failed_login, login_of
from airflow_lake_provider.execution.engines.local_process import LocalJob
from airflow_lake_provider.job_contract import FailureKind
from tests.support.engine_jobs import engine_job

LOGIN = Login("lake@R", "/etc/lake.keytab", "`principal` and `keytab` in the extra of connection 'spark'")
THROWN = (
    'Exception in thread "main" org.apache.hadoop.security.KerberosAuthException: failure to login: for principal: '
    "lake@R from keytab /etc/lake.keytab javax.security.auth.login.LoginException: "
)
NO_TGT = (
    "java.io.IOException: DestHost:destPort localhost:8020 , LocalHost:localPort vm/127.0.0.1:0. Failed on local "
    "exception: java.io.IOException: org.apache.hadoop.security.AccessControlException: Client cannot authenticate "
    "via:[TOKEN, KERBEROS]"
)


@pytest.mark.parametrize(
    ("line", "says", "kind"),
    [
        pytest.param(THROWN + "Checksum failed", "keys have changed", FailureKind.REFUSED, id="old-keys"),
        pytest.param(
            THROWN + "Pre-authentication information was invalid (24)",
            "keys have",
            FailureKind.REFUSED,
            id="old-keys-mit",
        ),
        pytest.param(
            THROWN + "Unable to obtain password from user",
            "no key of the principal",
            FailureKind.REFUSED,
            id="not-in-it",
        ),
        pytest.param(
            THROWN + "Client not found in Kerberos database (6) - CLIENT_NOT_FOUND",
            "no such principal",
            FailureKind.REFUSED,
            id="no-such-principal",
        ),
        pytest.param(
            "org.apache.spark.SparkException: Keytab file: /etc/lake.keytab does not exist",
            "no such file",
            FailureKind.REFUSED,
            id="no-such-file",
        ),
        pytest.param(
            THROWN + "Connection refused (Connection refused)",
            "KDC does not answer",
            FailureKind.INFRASTRUCTURE,
            id="kdc",
        ),
        pytest.param(THROWN + "Receive timed out", "KDC does not answer", FailureKind.INFRASTRUCTURE, id="kdc-hangs"),
        pytest.param(THROWN + "Clock skew too great (37)", "clocks", FailureKind.INFRASTRUCTURE, id="clocks"),
        pytest.param("GSSAPI: Preauthentication failed", "keys have changed", FailureKind.REFUSED, id="mit-old-keys"),
        pytest.param(
            "GSSAPI: No credentials cache found", "no key of the principal", FailureKind.REFUSED, id="mit-not-in-it"
        ),
        pytest.param(
            "GSSAPI: Server HTTP/127.0.0.1@R not found in Kerberos database",
            "by its host's name",
            FailureKind.REFUSED,
            id="mit-no-such-service",
        ),
        pytest.param(
            "GSSAPI: Cannot contact any KDC for realm 'R'",
            "KDC does not answer",
            FailureKind.INFRASTRUCTURE,
            id="mit-kdc",
        ),
        pytest.param(THROWN + "Something new", "krb5.conf", FailureKind.OTHER, id="unknown-is-retried"),
    ],
)
def test_failed_login_is_one_sentence_with_principal_keytab_setting_and_remedy(
    line: str, says: str, kind: FailureKind
) -> None:
    death = find_failed_login(["WARN NativeCodeLoader", line, "\tat org.apache.hadoop", "Caused by: x"], LOGIN)
    assert death is not None
    assert death.failure_kind is kind
    assert death.reason.startswith(
        f"Spark cannot log in to Kerberos as lake@R with keytab /etc/lake.keytab ({LOGIN.setting}): "
    )
    assert says in death.reason


def test_missing_ticket_may_be_renewed_and_so_is_a_matter_of_infrastructure() -> None:
    death = find_failed_login([NO_TGT], Login())
    assert death == Death(
        "Spark cannot log in to Kerberos with a ticket cache, because it has no keytab: Client cannot "
        "authenticate via; there is no valid ticket: set `principal` and `keytab` in the Spark connection, or renew "
        "the ticket cache",
        FailureKind.INFRASTRUCTURE,
    )


@pytest.mark.parametrize(
    "line",
    [
        "java.net.ConnectException: Connection refused",
        "Killed",
        "java.lang.OutOfMemoryError: timed out",
        "Checksum failed",
    ],
)
def test_other_ends_are_no_failed_logins(line: str) -> None:
    assert find_failed_login([line], LOGIN) is None


def test_keytab_that_only_spark_knows_is_read_from_its_message() -> None:
    death = find_failed_login([THROWN + "Checksum failed"], Login())
    assert death is not None
    assert (
        "as lake@R with keytab /etc/lake.keytab (spark.kerberos.principal and spark.kerberos.keytab in spark-defaults"
        in (death.reason)
    )


def test_connection_comes_before_the_settings_as_in_spark_submit() -> None:
    conf = {"spark.kerberos.principal": "p", "spark.kerberos.keytab": "/k"}
    assert login_of(conf, {"keytab": "/c", "principal": "lake@R"}, "spark").keytab == "/c"
    assert login_of(conf, {"keytab": None}, "spark") == Login(
        "p", "/k", "spark.kerberos.principal and spark.kerberos.keytab in spark_conf"
    )
    assert login_of({}, {}, "spark") == Login()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.REFUSED, ServiceRefusedError),
        (FailureKind.INFRASTRUCTURE, EngineAwayError),
        (FailureKind.OTHER, EngineError),
    ],
)
def test_death_without_a_result_is_the_error_of_its_kind(kind: FailureKind, error: type[Exception]) -> None:
    assert type(error_of(Death("no ticket", kind), "lake-warm")) is error


@pytest.mark.parametrize(("code", "is_dead"), [(1, True), (0, False)])
def test_local_process_that_failed_names_its_login_and_one_that_ended_well_does_not(
    tmp_path: Path, code: int, is_dead: bool
) -> None:
    local, job = LocalJob(), engine_job(tmp_path)
    script = f"print({THROWN + 'Checksum failed'!r}); raise SystemExit({code})"
    death = local.wait(local.start(job, [sys.executable, "-c", script, job.request_path], login=LOGIN))
    assert (death is not None and death.failure_kind is FailureKind.REFUSED) is is_dead
