"""A DNS server for pods: the services of a Kubernetes, as its API lists them, and nothing else.

`python -m local_stack.kubernetes_dns ADDRESS API CERTIFICATES` serves at port 53 of an address until it is ended.
"""

from __future__ import annotations

import json
import socketserver
import ssl
import struct
import sys
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

TYPE_A = 1
TTL_S = 1
ANSWER = 0x8580
NO_SUCH_NAME = 0x8583
DOMAIN = ("svc", "cluster", "local")


class Api:
    """The API server, asked as its administrator."""

    def __init__(self, url: str, certificates: Path) -> None:
        self._url = url
        self._tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self._tls.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")
        self._known: dict[tuple[str, str], list[str]] = {}

    def find_addresses(self, namespace: str, service: str) -> list[str] | None:
        """Return the addresses of a service's pods, the last known ones of a silent server; None without a service."""
        try:
            self._get(f"/api/v1/namespaces/{namespace}/services/{service}")
            subsets = self._get(f"/api/v1/namespaces/{namespace}/endpoints/{service}").get("subsets") or []
        except OSError as error:
            is_absent = isinstance(error, urllib.error.HTTPError) and error.code == HTTPStatus.NOT_FOUND
            return None if is_absent else self._known.get((namespace, service))
        # A driver's service wants the address before its pod is ready.
        kinds = ("addresses", "notReadyAddresses")
        found = [each["ip"] for subset in subsets for kind in kinds for each in subset.get(kind) or []]
        self._known[namespace, service] = found
        return found

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self._url + path, context=self._tls, timeout=5) as answer:
            return dict(json.load(answer))


def answer(query: bytes, api: Api) -> bytes:
    """Return the answer to a query of one question."""
    labels, end = [], 12
    while query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]].decode().lower())
        end += query[end] + 1
    (kind,) = struct.unpack(">H", query[end + 1 : end + 3])
    found = None
    if len(labels) > 2 and tuple(labels[2:]) in (DOMAIN, DOMAIN[:1]):
        found = api.find_addresses(labels[1], labels[0])
    addresses = (found or []) if kind == TYPE_A else []
    head = struct.pack(">HHHHH", NO_SUCH_NAME if found is None else ANSWER, 1, len(addresses), 0, 0)
    body = b"".join(
        # A pointer to the question's name, the type, the class, the time to live, and an address of four bytes.
        struct.pack(">HHHIH4B", 0xC00C, TYPE_A, 1, TTL_S, 4, *map(int, address.split(".")))
        for address in addresses
    )
    return query[:2] + head + query[12 : end + 5] + body


def main() -> int:
    address, url, certificates = sys.argv[1:]
    api = Api(url, Path(certificates))

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query, reply_to = self.request
            reply_to.sendto(answer(query, api), self.client_address)

    with socketserver.ThreadingUDPServer((address, 53), Handler) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
