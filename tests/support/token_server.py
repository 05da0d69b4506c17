"""A small OAuth server of a test's own: a token for a client's login, and the key that tokens are signed with."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa


def encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@dataclass
class TokenServer:
    """What the server knows: `login` is `client:secret`; tokens are for `audience` and live as long as it says."""

    login: str
    audience: str = "kafka"
    life_s: int = 3600
    url: str = ""
    given: list[str] = field(default_factory=list)
    """The form of each question that got a token."""
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def keys(self) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        n, e = (encode(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (numbers.n, numbers.e))
        return {"keys": [{"kty": "RSA", "kid": "own", "alg": "RS256", "use": "sig", "n": n, "e": e}]}

    def token(self, client: str) -> str:
        now = int(time.time())
        claims = {"sub": client, "iss": self.url, "aud": self.audience, "iat": now, "exp": now + self.life_s}
        parts = ({"alg": "RS256", "kid": "own", "typ": "JWT"}, claims)
        signed = ".".join(encode(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{encode(self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@contextmanager
def serve_tokens(tokens: TokenServer) -> Iterator[TokenServer]:
    """Serve it on the loopback address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, tokens.keys())

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if self.headers["Authorization"] != f"Basic {base64.b64encode(tokens.login.encode()).decode()}":
                self.answer(401, {"error": "invalid_client", "error_description": "no such client"})
                return
            tokens.given.append(form)
            token = tokens.token(tokens.login.partition(":")[0])
            self.answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": tokens.life_s})

        def answer(self, status: int, answer: dict[str, Any]) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing goes to the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tokens.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield tokens
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
