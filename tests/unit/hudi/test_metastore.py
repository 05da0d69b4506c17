"""What a Hive metastore answers is bounded and checked; only tables below the root are found."""

from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest

from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.hudi import metastore
from airflow_lake_provider.hudi.base_path import MAX_PROBLEMS
from airflow_lake_provider.hudi.metastore import MAX_ANSWER_BYTES, discover_in_metastore
from airflow_lake_provider.storage.table_storage import open_storage

Answer = Callable[[str, list[str]], bytes]


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack(">i", len(content)) + content


def reply(body: bytes, kind: int = 2) -> bytes:
    return struct.pack(">I", 0x80010000 | kind) + text("x") + struct.pack(">i", 0) + body + b"\0"


def listed(kind: int, *items: bytes) -> bytes:
    return reply(struct.pack(">bhbi", 15, 0, kind, len(items)) + b"".join(items))


def table(name: str, location: str, provider: str = "hudi") -> bytes:
    storage = struct.pack(">bh", 11, 2) + text(location) + struct.pack(">bh", 11, 3) + text("x.Input") + b"\0"
    parameters = struct.pack(">bbi", 11, 11, 1) + text("spark.sql.sources.provider") + text(provider)
    return (
        struct.pack(">bh", 11, 1) + text(name) + struct.pack(">bh", 11, 2) + text("shop")
        + struct.pack(">bh", 8, 4) + struct.pack(">i", 7)
        + struct.pack(">bh", 12, 7) + storage + struct.pack(">bh", 13, 9) + parameters + b"\0"
    )  # fmt: skip


class Server:
    """A metastore that answers each call by a function of its method and of the texts that it was asked."""

    def __init__(self, answer: Answer) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"
        self._answer = answer
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while content := connection.recv(1 << 20):
                size = struct.unpack(">i", content[4:8])[0]
                method = content[8 : 8 + size].decode()
                self.asked.append(method)
                connection.sendall(self._answer(method, []))

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def make_table(path: Path) -> Path:
    (path / ".hoodie").mkdir(parents=True)
    (path / ".hoodie" / "hoodie.properties").write_text(
        f"hoodie.table.name={path.name}\nhoodie.table.version=9\nhoodie.table.type=COPY_ON_WRITE\n"
    )
    return path


def catalog(*tables: bytes) -> Answer:
    def answer(method: str, _texts: list[str]) -> bytes:
        return {
            "get_all_databases": listed(11, text("shop"), text("other")),
            "get_all_tables": listed(11, *(text(f"t{n}") for n, _ in enumerate(tables))),
            "get_table_objects_by_name": listed(12, *tables),
        }[method]

    return answer


def test_tables_below_the_root_are_found_once_whatever_else_the_catalog_names(
    serve: Callable[[Answer], Server], tmp_path: Path
) -> None:
    orders = make_table(tmp_path / "lake" / "orders")
    secret = make_table(tmp_path / "other" / "secret")
    (tmp_path / "lake" / "link").symlink_to(secret)
    server = serve(
        catalog(
            table("orders", f"file:{orders}"),
            table("orders_ro", f"file:{orders}"),
            table("secret", f"file:{secret}"),
            table("linked", f"file:{tmp_path}/lake/link"),
            table("gone", f"file:{tmp_path}/lake/gone"),
            table("plain", f"file:{tmp_path}/lake/plain", "parquet"),
            table("odd", "file:/lake/../secret"),
            table("none", ""),
        )
    )
    found = discover_in_metastore(server.address, ["sho*"], str(tmp_path / "lake"), open_storage)
    assert [(one.base_path, one.name) for one in found.tables] == [(str(orders), "orders")]
    assert (found.folders, found.is_complete) == (7, True)
    said = " ".join(found.problems)
    for part in ("lake/link leads out of the root", "lake/gone", "'..' segment", "shop.none"):
        assert part in said
    assert server.asked == ["get_all_databases", "get_all_tables", "get_table_objects_by_name"]


def test_names_without_end_cost_little_and_hide_no_reason(serve: Callable[[Answer], Server], tmp_path: Path) -> None:
    hostile = catalog(*(table("t\x1b[2J\n" + "x" * 30_000, "relative") for _ in range(100)))
    names = listed(11, *(text(f"t{n}") for n in range(1000)))
    server = serve(lambda method, texts: names if method == "get_all_tables" else hostile(method, texts))
    tracemalloc.start()
    found = discover_in_metastore(server.address, ["shop"], str(tmp_path), open_storage)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 25 << 20  # one answer and what is made of it; all ten would be more
    assert (found.folders, len(found.problems)) == (1000, MAX_PROBLEMS)
    for problem in found.problems:
        assert "not absolute" in problem
        assert problem.isprintable()
        assert len(problem) < 500


def test_number_of_tables_is_bounded(serve: Callable[[Answer], Server], tmp_path: Path) -> None:
    orders = make_table(tmp_path / "orders")
    server = serve(catalog(*(table(f"t{n}", f"file:{orders}") for n in range(20))))
    found = discover_in_metastore(server.address, ["*"], str(tmp_path), open_storage, most_tables=5)
    assert (found.is_complete, len(found.tables)) == (False, 1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 50, "does not answer", id="http"),
        pytest.param(reply(struct.pack(">bhbi", 15, 0, 11, 2**31 - 1)), "items are announced", id="long-list"),
        pytest.param(reply(struct.pack(">bhi", 11, 0, MAX_ANSWER_BYTES + 1)), "are announced", id="long-text"),
        pytest.param(reply(struct.pack(">bh", 12, 1) * 50), "levels", id="deep"),
        pytest.param(
            reply(struct.pack(">bhbi", 15, 0, 12, 2_000_000) + b"\0" * 2_000_000), "2,000,000 values", id="many-values"
        ),
        pytest.param(reply(struct.pack(">bh", 99, 0)), "no type", id="type"),
        pytest.param(
            reply(struct.pack(">bh", 11, 1) + text("no\x1b[2J right"), 3), "refuses get_all_databases", id="error"
        ),
        pytest.param(
            reply(struct.pack(">bh", 12, 1) + struct.pack(">bh", 11, 1) + text("MetaException: no") + b"\0"),
            "MetaException: no",
            id="exception",
        ),
    ],
)
def test_answer_that_is_none_is_one_clear_error(
    serve: Callable[[Answer], Server], tmp_path: Path, answer: bytes, said: str
) -> None:
    server = serve(lambda _method, _texts: answer)
    with pytest.raises(StorageError) as caught:
        discover_in_metastore(server.address, ["*"], str(tmp_path), open_storage)
    assert said in str(caught.value)
    assert server.address in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_answer_without_an_end_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastore, "TIMEOUT_S", 0.3)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                while not ended.wait(0.05):
                    connection.sendall(b"\x80")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(StorageError, match="does not answer get_all_databases"):
            discover_in_metastore(f"thrift://127.0.0.1:{listener.getsockname()[1]}", ["*"], str(tmp_path), open_storage)
        ended.set()
        thread.join(5)


def test_databases_without_an_end_end_in_time(
    serve: Callable[[Answer], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metastore, "SEARCH_TIMEOUT_S", 0.5)
    names = listed(11, *(text(f"d{number}") for number in range(20_000)))

    def answer(method: str, _texts: list[str]) -> bytes:
        if method == "get_all_databases":
            return names
        sleep(0.01)  # 20,000 of these take minutes on any machine
        return listed(11)

    server = serve(answer)
    with pytest.raises(StorageError, match="has not named all tables within 0 s: name fewer databases"):
        discover_in_metastore(server.address, ["*"], str(tmp_path), open_storage)
    assert len(server.asked) < 20_000


def test_metastore_that_is_away_names_every_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    both = f"thrift://127.0.0.1:{port},thrift://127.0.0.1:{port}"
    with pytest.raises(StorageError, match=r"does not answer: thrift://127\.0\.0\.1:\d+: .*; thrift://"):
        discover_in_metastore(both, ["*"], str(tmp_path), open_storage)
