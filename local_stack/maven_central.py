"""Download jars straight from Maven Central, past every cache of this machine.

Maven and Ivy ask the user's own caches first, and stop at one that holds a library's description without its jar. Each
jar here has one address and one checksum, in `jars.sha256`. An interrupted download is continued.

`python -m local_stack.maven_central hudi-spark3.5-bundle_2.12-1.2.0.jar --into lib` puts a jar into a folder. The
module needs nothing but Python, so that the images' build runs it as a file.

`LAKE_MAVEN_REPOSITORY` names another repository of the same layout, such as a company's mirror of Maven Central, also
with `user:password@`; where it is not set, `DEFAULT_ARTIFACT_REPOSITORY` does, as for Spark. Proxies are those of
`https_proxy` and `no_proxy`, and a private CA is that of `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` or `PIP_CERT`.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import http.client
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import BinaryIO

CENTRAL = "https://repo1.maven.org/maven2"
REPOSITORY_VARIABLES = ("LAKE_MAVEN_REPOSITORY", "DEFAULT_ARTIFACT_REPOSITORY")
CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "PIP_CERT")
CHECKSUMS = Path(__file__).with_name("jars.sha256")
TIMEOUT_S = 60.0
"""How long a server may send nothing."""
FRUITLESS_TRIES = 4
PAUSE_S = 2.0
_CHUNK_BYTES = 1 << 20
_LASTING = (401, 403, 404, 407, 410)
"""Statuses that asking again does not change."""


class DownloadError(RuntimeError):
    """A jar cannot be had; the message is one sentence with the cause and what to do."""


class _LastingError(Exception):
    pass


def repository() -> str:
    """Return the repository's URL, as it is configured."""
    return next((os.environ[name] for name in REPOSITORY_VARIABLES if os.environ.get(name)), CENTRAL).rstrip("/")


def checksums() -> dict[str, tuple[str, str]]:
    """Return each known jar's path in a repository and its SHA-256, by file name."""
    lines = (line.split() for line in CHECKSUMS.read_text(encoding="utf-8").splitlines())
    return {Path(path).name: (path, sha256) for sha256, path in lines}


def download(name: str, folder: Path, pause_s: float = PAUSE_S) -> Path:
    """Put a known jar into a folder unless it is there, and return its path. Raises DownloadError."""
    target = folder / name
    if target.exists():
        return target
    if name not in checksums():
        raise DownloadError(f"the checksum of {name} is not known: add it to {CHECKSUMS}")
    path, sha256 = checksums()[name]
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    # Two processes that want the same jar take turns, and the second one finds it.
    with open(folder / f"{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _fetch(f"{repository()}/{path}", sha256, part, target, pause_s)
            part.replace(target)
    return target


def _fetch(url: str, sha256: str, part: Path, target: Path, pause_s: float) -> None:
    is_continued = part.exists()
    fruitless = 0
    while True:
        size = _size(part)
        try:
            _append(url, part)
            cause = _difference(part, sha256)
            if cause is None:
                return
            part.unlink(missing_ok=True)
            if not is_continued:
                break
            # The beginning was of another download; the next one is whole.
            is_continued = False
            continue
        except _LastingError as error:
            cause = str(error)
            break
        except urllib.error.HTTPError as error:
            cause = str(error)
        except (OSError, http.client.HTTPException) as error:
            cause = f"{type(error).__name__}: {getattr(error, 'reason', error)}"
        fruitless = 0 if _size(part) > size else fruitless + 1
        if fruitless == FRUITLESS_TRIES:
            break
        time.sleep(pause_s * 2 ** max(0, fruitless - 1))
    raise DownloadError(
        f"cannot fetch {_without_user(url)}: {cause}; set {REPOSITORY_VARIABLES[0]} to a mirror of Maven Central that "
        f"this machine reaches, or put the file with SHA-256 {sha256} at {target}"
    )


def _append(url: str, part: Path) -> None:
    """Continue a download, from the beginning where the server cannot continue it."""
    size = _size(part)
    request = urllib.request.Request(_without_user(url))
    for name, text in _headers(url).items():
        # Mirrors redirect to other hosts' stores, which must not learn the login.
        request.add_unredirected_header(name, text)
    if size:
        request.add_header("Range", f"bytes={size}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=_trust()) as answer:
            begins = f"bytes {size}-"
            goes_on = answer.status == http.client.PARTIAL_CONTENT and answer.headers["Content-Range"].startswith(
                begins
            )
            with part.open("ab" if goes_on else "wb") as file:
                _copy(answer, file)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            # All of it is there already, and its checksum decides.
            return
        if error.code in _LASTING:
            raise _LastingError(str(error)) from error
        raise


def _copy(answer: http.client.HTTPResponse, file: BinaryIO) -> None:
    expected = answer.length
    copied = 0
    while chunk := answer.read(_CHUNK_BYTES):
        file.write(chunk)
        copied += len(chunk)
    if expected is not None and copied < expected:
        raise http.client.IncompleteRead(b"", expected - copied)


def _difference(part: Path, sha256: str) -> str | None:
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == sha256:
        return None
    return f"the {_size(part):,} bytes of the answer are not that jar (their SHA-256 is {found})"


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _without_user(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _headers(url: str) -> dict[str, str]:
    user, is_named, _ = urllib.parse.urlsplit(url).netloc.rpartition("@")
    if not is_named:
        return {}
    plain = urllib.parse.unquote(user)
    return {"Authorization": "Basic " + base64.b64encode(plain.encode()).decode()}


def _trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in CA_VARIABLES:
        path = Path(os.environ.get(name, ""))
        if path.is_file():
            context.load_verify_locations(cafile=path)
    return context


def main() -> int:
    parser = argparse.ArgumentParser(description="Download jars from Maven Central.")
    parser.add_argument("names", nargs="+", help="file names of jars")
    parser.add_argument("--into", type=Path, required=True, help="folder")
    options = parser.parse_args()
    try:
        for name in options.names:
            print(download(name, options.into), flush=True)
    except DownloadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
