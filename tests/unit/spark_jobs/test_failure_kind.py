import pytest

from airflow_lake_provider.job_contract import FailureKind
from lake_jobs.driver.failure import MAX_CAUSES, Cause, causes_of, classify, describe, find_away, is_denied

HUDI = "org.apache.hudi.exception."
HADOOP = "org.apache.hadoop.security."
LOGIN = "failure to login: for principal: lake@R from keytab /k javax.security.auth.login.LoginException: "
STAGE = "Job aborted due to stage failure: Task 0 in stage 7.0 failed 4 times, most recent failure: "


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        pytest.param(
            [Cause(HUDI + "HoodieLockException", "Unable to acquire the lock. Current lock owner information : ")],
            FailureKind.LOCK,
            id="lock-not-taken",
        ),
        pytest.param(
            [
                Cause(
                    HUDI + "HoodieLockException",
                    "Cannot execute instant 20261121045502123 due to heartbeat by concurrent writer/job",
                )
            ],
            FailureKind.BUSY,
            id="live-heartbeat-is-no-lock-problem",
        ),
        pytest.param(
            [
                Cause(HUDI + "HoodieClusteringException", "unable to transition clustering inflight to complete: 2026"),
                Cause(HUDI + "HoodieWriteConflictException", "java.util.ConcurrentModificationException: Cannot ..."),
                Cause("java.util.ConcurrentModificationException", "Cannot resolve conflicts for overlapping writes"),
            ],
            FailureKind.CONFLICT,
            id="clustering-gives-way-to-a-writer",
        ),
        pytest.param(
            [
                Cause(HUDI + "HoodieClusteringException", "unable to transition clustering inflight to complete: 2026"),
                Cause("java.io.IOException", "No space left on device"),
            ],
            FailureKind.OTHER,
            id="clustering-exception-wraps-all-sorts",
        ),
        pytest.param(
            [
                Cause(
                    HUDI + "HoodieException",
                    "Requested compaction instant 20261121045502123 is not present as pending or already completed "
                    "in the active timeline.",
                )
            ],
            FailureKind.PLAN_GONE,
            id="plan-gone",
        ),
        pytest.param(
            [
                Cause(HUDI + "HoodieException", "commit failed"),
                Cause(HUDI + "HoodieWriteConflictException", "java.util.ConcurrentModificationException: Cannot ..."),
            ],
            FailureKind.CONFLICT,
            id="conflict-further-down",
        ),
        pytest.param(
            [Cause("org.apache.spark.SparkException", STAGE + f"{HUDI}HoodieEarlyConflictDetectionException: x\n\tat")],
            FailureKind.CONFLICT,
            id="conflict-quoted-from-a-task",
        ),
        pytest.param([Cause("java.lang.OutOfMemoryError", "Java heap")], FailureKind.OUT_OF_MEMORY, id="driver-oom"),
        pytest.param(
            [Cause("org.apache.spark.SparkException", STAGE + "java.lang.OutOfMemoryError: Java heap space\n\tat x")],
            FailureKind.OUT_OF_MEMORY,
            id="executor-oom",
        ),
        pytest.param(
            [
                Cause(
                    "org.apache.spark.SparkException",
                    STAGE + "ExecutorLostFailure (executor 1 exited): Container killed by YARN for exceeding physical "
                    "memory limits. 4.5 GB of 4.5 GB physical memory used.",
                )
            ],
            FailureKind.OUT_OF_MEMORY,
            id="container-oom",
        ),
        pytest.param(
            [Cause(HUDI + "HoodieHeartbeatException", "Unable to generate heartbeat for instant 1")],
            FailureKind.OTHER,
            id="own-heartbeat-failed",
        ),
        pytest.param(
            [
                Cause(HUDI + "HoodieLockException", "Unable to acquire the lock. Current lock owner information : "),
                Cause("java.io.IOException", "DestHost:destPort localhost:8020 ..."),
                Cause(HADOOP + "AccessControlException", "Client cannot authenticate via:[TOKEN, KERBEROS]"),
            ],
            FailureKind.INFRASTRUCTURE,
            id="no-ticket-is-no-lock-problem",
        ),
        pytest.param(
            [
                Cause("java.io.IOException", "Couldn't set up IO streams"),
                Cause(HADOOP + "KerberosAuthException", LOGIN + "Checksum failed"),
            ],
            FailureKind.REFUSED,
            id="keys-changed-while-it-ran",
        ),
        pytest.param(
            [
                Cause(
                    "org.apache.spark.SparkException", STAGE + f"{HADOOP}KerberosAuthException: {LOGIN}Checksum failed"
                )
            ],
            FailureKind.REFUSED,
            id="keys-changed-quoted-from-a-task",
        ),
        pytest.param([Cause("java.io.FileNotFoundException")], FailureKind.OTHER, id="unknown"),
        pytest.param([], FailureKind.OTHER, id="nothing-known"),
    ],
)
def test_failure_kind_of_a_chain_of_causes(causes: list[Cause], kind: FailureKind) -> None:
    assert classify(causes) is kind


@pytest.mark.parametrize(
    ("cause", "denied"),
    [
        (Cause("java.io.FileNotFoundException", "/t/.hoodie/0.probe (Permission denied)"), True),
        (Cause(HADOOP + "AccessControlException", "Permission denied: user=lake, access=WRITE, inode=..."), True),
        (Cause("java.nio.file.AccessDeniedException", "s3a://b/t: Forbidden (Status Code: 403)"), True),
        (Cause("java.io.FileNotFoundException", "/t/.hoodie/0.probe (Read-only file system)"), True),
        (Cause("java.io.FileNotFoundException", "/t/.hoodie/0.probe (No space left on device)"), False),
        (Cause("java.net.ConnectException", "Call From a to b:8020 failed: Connection refused"), False),
        (Cause("org.apache.hadoop.ipc.RemoteException", "Name node is in safe mode."), False),
    ],
)
def test_denied_is_what_no_retry_brings(cause: Cause, denied: bool) -> None:
    assert is_denied([Cause("java.io.IOException", "it failed"), cause]) is denied


def test_description_names_the_outermost_and_the_root_cause_and_the_last_message_on_one_line() -> None:
    causes = [
        Cause("a.b.Outer", "it broke\n\tat somewhere"),
        Cause("a.Middle", "?"),
        Cause("a.Root", "", "Builder.build"),
    ]
    assert describe(causes) == "Outer: it broke <- Middle: ? <- Root in Builder.build"
    assert describe(causes[:1]) == "Outer: it broke"
    assert describe([]) == ""
    assert len(describe([Cause("X", "y" * 5000)])) == 1000


def test_description_of_ancient_dates_ends_with_the_setting() -> None:
    spark = (
        "[INCONSISTENT_BEHAVIOR_CROSS_VERSION.READ_ANCIENT_DATETIME] You may get a different result due to the "
        "upgrading to Spark >= 3.0:\nreading dates before 1582-10-15"
    )
    failed_task = Cause("org.apache.spark.SparkException", "Job aborted: Lost task 0.0")
    assert describe([failed_task, Cause("org.apache.spark.SparkUpgradeException", spark)]).endswith(
        "set `spark_conf: {spark.sql.parquet.datetimeRebaseModeInRead: CORRECTED}` for this table, or LEGACY where "
        "Spark 2 wrote its files"
    )


def test_description_of_a_failed_login_begins_with_what_to_do() -> None:
    causes = [Cause("java.io.IOException", "x"), Cause(HADOOP + "KerberosAuthException", LOGIN + "Checksum failed")]
    assert describe(causes).startswith(
        "no Kerberos ticket for principal: lake@R from keytab /k javax.security.auth.login.LoginException: "
        "Checksum failed: Checksum failed; the principal's keys have changed since"
    )
    expired = describe([Cause("a.Outer", "x"), Cause("a.GSSException", "No valid credentials (Ticket expired (32))")])
    assert expired.startswith(
        "no Kerberos ticket: Ticket expired; there is no valid ticket: set `principal` and `keytab`"
    )


class FakeThrowable:
    """A Java throwable as py4j shows it."""

    def __init__(self, class_name: str, message: str | None, cause: "FakeThrowable | None" = None) -> None:
        self.class_name, self.message, self.cause = class_name, message, cause

    def getClass(self) -> "FakeThrowable":
        return self

    def getName(self) -> str:
        return self.class_name

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> "FakeThrowable | None":
        return self.cause

    def getStackTrace(self) -> list[str]:
        return [
            "java.base/java.util.Hashtable.put(Hashtable.java:481)",
            "app//org.apache.hudi.config.HoodieIndexConfig$Builder.build(HoodieIndexConfig.java:7)",
        ]


def test_causes_are_walked_to_the_root_and_a_loop_ends() -> None:
    assert causes_of(FakeThrowable("A", "m", FakeThrowable("B", None))) == (
        Cause("A", "m"),
        Cause("B", "", "HoodieIndexConfig$Builder.build"),
    )
    loop = FakeThrowable("A", "m")
    loop.cause = loop
    assert len(causes_of(loop)) == MAX_CAUSES


@pytest.mark.parametrize(
    ("causes", "says"),
    [
        pytest.param(
            [Cause("java.net.ConnectException", "Call From worker/10.0.0.7 to rm:8032 failed on connection exception")],
            "Spark's cluster does not answer",
            id="resource-manager",
        ),
        pytest.param(
            [Cause("java.lang.IllegalStateException", "Cannot call methods on a stopped SparkContext.")],
            "Spark's cluster does not answer",
            id="standalone-master",
        ),
        pytest.param(
            [
                Cause(
                    "org.apache.hadoop.yarn.exceptions.YarnException",
                    "Failed to submit application_1_0005 to YARN : org.apache.hadoop.security.AccessControlException: "
                    "Queue root.default already has 4 applications, cannot accept submission of application: "
                    "application_1_0005",
                )
            ],
            "YARN's queue is full",
            id="queue-full",
        ),
        pytest.param(
            [Cause("java.lang.IllegalArgumentException", "System memory 477626368 must be at least 471859200.")],
            "",
            id="a-setting-is-wrong",
        ),
        pytest.param([Cause("java.lang.ClassNotFoundException", "org.example.Listener")], "", id="a-jar-is-missing"),
        pytest.param(
            [Cause("org.apache.hadoop.yarn.exceptions.YarnException", "Application rejected by queue placement")],
            "",
            id="application-is-rejected",
        ),
    ],
)
def test_cluster_that_is_away_is_distinguished_from_settings_that_are_wrong(causes: list[Cause], says: str) -> None:
    assert find_away(causes) == says


@pytest.mark.parametrize(
    "cause",
    [
        Cause("java.lang.ClassNotFoundException", "com.acme.lake.OrderPayload"),
        Cause("java.lang.NoClassDefFoundError", "com/acme/lake/OrderPayload"),
        Cause("org.apache.spark.SparkException", "Task 0 failed: java.lang.ClassNotFoundException: com.acme.Payload"),
    ],
)
def test_missing_class_is_described_with_its_remedy(cause: Cause) -> None:
    text = describe([Cause("org.apache.hudi.exception.HoodieException", "Unable to load class"), cause])
    assert text.endswith("the jar with that class (`spark_conf: {spark.jars: <path>}`)")
    assert "spark.jars" not in describe([Cause("java.io.IOException", "no such file")])
