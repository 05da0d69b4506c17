"""SPNEGO (RFC 4559): a REST API that answers 401 gets a ticket of the job's own login.

The ticket comes from MIT's library, as in `hdfs-native`: the package `requests-kerberos`, which the Spark provider
would take, must be compiled, and reads no keytab.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.engine import Death, error_of, find_failed_login

if TYPE_CHECKING:
    from airflow_lake_provider.execution.engines.engine import Login


class Negotiate(requests.auth.AuthBase):
    """Answers "401 Negotiate" with a ticket of a login: of its keytab, else of the default ticket cache.

    A request raises ServiceRefusedError for a keytab that is wrong, and EngineAwayError while there is no ticket.
    """

    def __init__(self, login: Login, job_name: str) -> None:
        self._login = login
        self._job_name = job_name

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Let `requests` show the answer before it returns it."""
        request.register_hook("response", self._answer)
        return request

    def _answer(self, refused: requests.Response, **how: Any) -> requests.Response:
        asked = "negotiate" in refused.headers.get("WWW-Authenticate", "").lower()
        if refused.status_code != requests.codes.unauthorized or not asked:
            return refused
        again = refused.request.copy()
        again.headers["Authorization"] = f"Negotiate {self._ticket(urlsplit(str(again.url)).hostname or '')}"
        _ = refused.content  # or its connection could not be used again
        answer: requests.Response = refused.connection.send(again, **how)
        answer.history.append(refused)
        return answer

    def _ticket(self, host: str) -> str:
        try:
            return b64encode(_first_token(f"HTTP@{host}", self._login)).decode()
        except _GssError as error:
            # As the JDK says it.
            said = re.sub(r"Client '.*' not found", "Client not found", f"GSSAPI: {error}")
            death = find_failed_login([said], self._login)
            raise error_of(death or Death(f"no Kerberos ticket for HTTP@{host}: {error}"), self._job_name) from error


class _GssError(Exception):
    """What MIT's library says."""


class _Bytes(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("start", ctypes.c_void_p))


class _Oid(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("content", ctypes.c_char_p))


class _Element(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Elements(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint32), ("first", ctypes.POINTER(_Element)))


_KERBEROS = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"
_PRINCIPAL_NAME = _KERBEROS + b"\x01"
_SERVICE_NAME = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04"
_SPNEGO = b"\x2b\x06\x01\x05\x05\x02"
_INITIATE, _OF_MECHANISM, _FAILED = 1, 2, 0xFFFF0000


def _first_token(service: str, login: Login) -> bytes:
    """Return the token for a service, for example `HTTP@host`. Raises _GssError."""
    library = _load_library()
    with contextlib.ExitStack() as used:
        target = _import_name(library, used, service, _SERVICE_NAME)
        credential = _pointer(library, used, "gss_release_cred")
        if login.keytab:
            user = _import_name(library, used, login.principal, _PRINCIPAL_NAME) if login.principal else None
            # Tickets outlive the credential there; no other process sees them.
            cache = f"MEMORY:{hashlib.sha256(f'{login.principal} {login.keytab}'.encode()).hexdigest()}"
            found = (_Element * 2)(
                _Element(b"client_keytab", f"FILE:{login.keytab}".encode()), _Element(b"ccache", cache.encode())
            )
            how = (user, 0, None, _INITIATE, ctypes.byref(_Elements(2, found)), ctypes.byref(credential), None, None)
            _call(library, "gss_acquire_cred_from", *how)
        # First the mechanism below: SPNEGO does not say why that has no ticket.
        for mechanism in (_KERBEROS, _SPNEGO):
            context = _pointer(library, used, "gss_delete_sec_context", None)
            token = _Bytes()
            used.callback(library.gss_release_buffer, ctypes.byref(ctypes.c_uint32()), ctypes.byref(token))
            wanted = (credential, ctypes.byref(context), target, ctypes.byref(_Oid(len(mechanism), mechanism)), 0, 0)
            _call(library, "gss_init_sec_context", *wanted, None, None, None, ctypes.byref(token), None, None)
        return ctypes.string_at(token.start or 0, token.length)


def _load_library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libgssapi_krb5.so.2")
    except OSError as error:
        raise ConfigError(f"YARN's REST API wants Kerberos, and MIT's library is not installed: {error}") from error


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    minor, function = ctypes.c_uint32(), getattr(library, name)
    function.restype = ctypes.c_uint32
    if function(ctypes.byref(minor), *arguments) & _FAILED:
        text, more, unused = _Bytes(), ctypes.c_uint32(), ctypes.byref(ctypes.c_uint32())
        library.gss_display_status(unused, minor, _OF_MECHANISM, None, ctypes.byref(more), ctypes.byref(text))
        said = ctypes.string_at(text.start or 0, text.length).decode(errors="replace")
        library.gss_release_buffer(unused, ctypes.byref(text))
        raise _GssError(said)


def _pointer(library: ctypes.CDLL, used: contextlib.ExitStack, release: str, *more: Any) -> ctypes.c_void_p:
    pointer = ctypes.c_void_p()
    used.callback(getattr(library, release), ctypes.byref(ctypes.c_uint32()), ctypes.byref(pointer), *more)
    return pointer


def _import_name(library: ctypes.CDLL, used: contextlib.ExitStack, text: str, kind: bytes) -> ctypes.c_void_p:
    name, content = _pointer(library, used, "gss_release_name"), ctypes.create_string_buffer(text.encode())
    given = _Bytes(len(text.encode()), ctypes.addressof(content))
    _call(library, "gss_import_name", ctypes.byref(given), ctypes.byref(_Oid(len(kind), kind)), ctypes.byref(name))
    return name
