"""A jar is downloaded whole, continued, compared with its checksum, and refused in one sentence."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from local_stack import hudi_bundle, maven_central
from local_stack.maven_central import DownloadError, checksums, download

NAME = "own-1.0.jar"
PATH = f"org/own/own/1.0/{NAME}"
BODY = bytes(range(256)) * 1000
GARBAGE = b"<html>please log in</html>"


@dataclass
class Repository:
    """A repository with one jar, and what goes wrong with it."""

    url: str = ""
    garbage: bool = False
    status: int = 200
    cut_at: list[int] = field(default_factory=list)
    """Where each next answer breaks off."""
    can_continue: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        headers = handler.headers
        self.asked.append((handler.path, headers.get("Range", ""), headers.get("Authorization", "")))
        if self.status != 200:
            handler.send_error(self.status)
            return
        body, begin = GARBAGE if self.garbage else BODY, 0
        if self.can_continue and "Range" in headers and not self.garbage:
            begin = int(headers["Range"].removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                handler.send_error(416)
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        else:
            handler.send_response(200)
        handler.send_header("Content-Length", str(len(body) - begin))
        handler.end_headers()
        handler.wfile.write(body[begin : self.cut_at.pop(0) if self.cut_at else None])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    served = Repository()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    known = tmp_path / "jars.sha256"
    known.write_text(f"{hashlib.sha256(BODY).hexdigest()}  {PATH}\n", encoding="utf-8")
    monkeypatch.setattr(maven_central, "CHECKSUMS", known)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        served.url = f"http://127.0.0.1:{server.server_port}/maven2"
        monkeypatch.setenv("LAKE_MAVEN_REPOSITORY", served.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield served
        server.shutdown()


def fetch(tmp_path: Path) -> bytes:
    jar = download(NAME, tmp_path / "lib", pause_s=0.0)
    assert jar == tmp_path / "lib" / NAME
    assert not list(jar.parent.glob("*.part"))
    return jar.read_bytes()


def test_jar_is_downloaded_once(repository: Repository, tmp_path: Path) -> None:
    assert fetch(tmp_path) == BODY
    assert fetch(tmp_path) == BODY
    assert repository.asked == [(f"/maven2/{PATH}", "", "")]


def test_broken_off_download_is_continued(repository: Repository, tmp_path: Path) -> None:
    repository.cut_at = [1000, 5000]
    assert fetch(tmp_path) == BODY
    assert [begin for _, begin, _ in repository.asked] == ["", "bytes=1000-", "bytes=5000-"]


def test_download_begins_again_where_the_server_cannot_continue_it(repository: Repository, tmp_path: Path) -> None:
    repository.can_continue, repository.cut_at = False, [1000]
    assert fetch(tmp_path) == BODY


@pytest.mark.parametrize("left", [b"of another download", BODY[:7], BODY, BODY + b"more", b""])
def test_what_an_earlier_process_left_is_continued_or_replaced(
    repository: Repository, tmp_path: Path, left: bytes
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"{NAME}.part").write_bytes(left)
    assert fetch(tmp_path) == BODY
    assert len(repository.asked) <= 2


def test_page_of_a_proxy_is_no_jar(repository: Repository, tmp_path: Path) -> None:
    repository.garbage = True
    with pytest.raises(DownloadError, match="the 26 bytes of the answer are not that jar") as caught:
        fetch(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(repository.asked) == 1
    repository.garbage = False
    assert fetch(tmp_path) == BODY


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (401, 1), (503, maven_central.FRUITLESS_TRIES)])
def test_only_what_may_change_is_tried_again(repository: Repository, tmp_path: Path, status: int, asked: int) -> None:
    repository.status = status
    with pytest.raises(DownloadError) as caught:
        fetch(tmp_path)
    assert len(repository.asked) == asked
    for text in (f"{repository.url}/{PATH}", str(status), "LAKE_MAVEN_REPOSITORY", str(tmp_path / "lib" / NAME)):
        assert text in str(caught.value)


def test_user_of_a_mirror_is_sent_and_not_said(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_MAVEN_REPOSITORY", repository.url.replace("http://", "http://me:se%40cret@") + "/")
    repository.status = 403
    with pytest.raises(DownloadError) as caught:
        fetch(tmp_path)
    assert repository.asked == [(f"/maven2/{PATH}", "", "Basic bWU6c2VAY3JldA==")]
    assert "cret" not in str(caught.value)


def test_repository_is_that_of_spark_where_ours_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_MAVEN_REPOSITORY", "")
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "https://mirror/central/")
    assert maven_central.repository() == "https://mirror/central"
    monkeypatch.delenv("DEFAULT_ARTIFACT_REPOSITORY")
    assert maven_central.repository() == maven_central.CENTRAL


def test_unknown_jar_is_not_downloaded(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"the checksum of other\.jar is not known"):
        download("other.jar", tmp_path)
    assert not repository.asked


def test_every_jar_that_tests_and_images_name_has_a_checksum() -> None:
    bundles = [hudi_bundle.jar_of(version).name for version in (hudi_bundle.VERSION, *hudi_bundle.OLDER_VERSIONS)]
    assert {*bundles, *hudi_bundle.S3A, *hudi_bundle.KAFKA_SOURCE} <= set(checksums())
