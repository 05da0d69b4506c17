"""What a caller may ask the manager for: tokens with a name, roots and rights, from `[lake]` and from the tokens file.

Only digests of tokens stay in memory, and every comparison takes the same time. The file is read again when it has
changed; what is wrong in it, or may still be half written, leaves the last good one in force.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from airflow_lake_provider.config.tables_source import FileWatch, Settle, Stamp
from airflow_lake_provider.errors import (
    ConfigError,
    ForbiddenError,
    LakeError,
    PathNotAllowedError,
    TableUnknownError,
    UnauthorisedError,
)
from airflow_lake_provider.hudi.base_path import is_below, normalise_root
from airflow_lake_provider.request_bounds import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_lake_provider.config.settings import LakeSettings

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
SETTLED = Settle()


class Right(StrEnum):
    """What a token allows for the tables below its roots."""

    NOTIFY = "notify"
    """Send notices: ask for evaluations."""
    READ = "read"
    """Read the registry, decisions, instances, sinks and timelines; changes nothing."""
    HOLD = "hold"
    """Hold a table's files for a reader, for as long as the table's policy allows."""
    OPERATE = "operate"
    """What Airflow's tasks do: hints, leases, policies, safepoints, sinks, discovery; forget a table."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one token allows. `roots` are path prefixes; None covers all tables."""

    name: str
    rights: frozenset[Right]
    roots: tuple[str, ...] | None = None

    @property
    def audience(self) -> Audience:
        """The tables that the token may read, for queries."""
        return Audience(only=self.roots)

    def covers(self, base_path: str) -> bool:
        """Whether a normalised base path lies below the token's roots."""
        return self.roots is None or is_below(base_path, self.roots)

    def require_right(self, right: Right) -> None:
        """Raise ForbiddenError that names the missing right."""
        if right not in self.rights:
            raise ForbiddenError(
                f"token {self.name!r} has no right {right.value!r}, its rights are: {', '.join(sorted(self.rights))}"
            )

    def require_path(self, base_path: str) -> None:
        """Raise PathNotAllowedError for a table below none of the token's roots, whether there is one or not."""
        if not self.covers(base_path):
            raise PathNotAllowedError(f"base path {base_path!r} lies below no root of {self._described()}")

    def require_table(self, table_id: str, find_base_path: Callable[[str], str | None]) -> None:
        """Raise TableUnknownError for a table that the token does not cover; the same one when there is none."""
        if self.roots is None:
            return
        base_path = find_base_path(table_id)
        if base_path is None or not self.covers(base_path):
            raise TableUnknownError(f"no table {table_id!r} below the roots of {self._described()}")

    def require_all_roots(self, what: str) -> None:
        """Raise ForbiddenError for a token that does not cover all tables."""
        if self.roots is not None:
            raise ForbiddenError(
                f"{what} concerns all tables; it needs one of [lake] service_tokens instead of {self._described()}"
            )

    def _described(self) -> str:
        return f"token {self.name!r} ({', '.join(self.roots or ())})"


@dataclass(frozen=True, slots=True)
class Audience:
    """Which tables a caller may see: all but those below `hidden` and not below `shown`. Path prefixes.

    With `only`, that of a token with roots, none but those below it.
    """

    hidden: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None

    def covers(self, base_path: str) -> bool:
        """Whether the caller may see the table at a normalised base path."""
        if self.only is not None and not is_below(base_path, self.only):
            return False
        return not is_below(base_path, self.hidden) or is_below(base_path, self.shown)

    @property
    def is_limited(self) -> bool:
        """Whether some tables may be hidden from the caller; then figures over all tables are, too."""
        return self.only is not None or any(not is_below(normalise_root(root), self.shown) for root in self.hidden)

    def require_table(self, table_id: str, base_path: str | None) -> None:
        """Raise TableUnknownError for a table that the person may not see; the same one when there is none."""
        if base_path is None or not self.covers(base_path):
            raise TableUnknownError(f"no table {table_id!r} among those that you may see")


EVERYONE = Audience()
"""Those who may see all tables."""


# --- The tokens file


def _refuse_wrong(root: str) -> str:
    try:
        normalise_root(root)
    except LakeError as error:
        raise ValueError(str(error)) from error
    return root


class TokenEntry(BaseModel):
    """The tokens of one team or program."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    roots: Annotated[list[Annotated[str, AfterValidator(_refuse_wrong)]], Field(min_length=1)]
    rights: Annotated[list[Right], Field(min_length=1)]
    # Several are valid at once, so that the sender can change its token without a gap.
    sha256: Annotated[list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]], Field(min_length=1)]
    # Airflow's users, and roles as `role:<name>`, that alone see the tables below the roots on the pages.
    viewers: list[Annotated[str, StringConstraints(min_length=1, max_length=250)]] | None = None


class TokensFile(BaseModel):
    """The content of `[lake] tokens_file`."""

    model_config = ConfigDict(extra="forbid")

    tokens: list[TokenEntry]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a tokens file says."""

    of: tuple[tuple[bytes, Grant], ...] = ()
    """Digests with what they allow."""
    viewers: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = ()
    """Users and roles, with the roots whose tables only they see."""

    def find_audience(self, names: frozenset[str]) -> Audience:
        """Return what a person may see, by name and roles."""
        hidden = tuple(chain.from_iterable(roots for _, roots in self.viewers))
        shown = tuple(chain.from_iterable(roots for viewers, roots in self.viewers if viewers & names))
        return Audience(tuple(dict.fromkeys(hidden)), tuple(dict.fromkeys(shown)))


def parse_tokens(text: str, name: str) -> Tokens:
    """Return what the file says. Raises ConfigError that names the file and the place in it."""
    try:
        parsed = TokensFile.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {error}") from error
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in wrong["loc"]) or "the file"
        raise ConfigError(f"{name}: {place}: {wrong['msg']}") from error
    names = [entry.name for entry in parsed.tokens]
    digests = list(chain.from_iterable(entry.sha256 for entry in parsed.tokens))
    for what, found in (("name", names), ("sha256", digests)):
        twice = next((one for one in found if found.count(one) > 1), None)
        if twice is not None:
            raise ConfigError(f"{name}: {what} {twice!r} is there twice")
    return Tokens(
        tuple(
            (bytes.fromhex(digest), Grant(entry.name, frozenset(entry.rights), tuple(entry.roots)))
            for entry in parsed.tokens
            for digest in entry.sha256
        ),
        tuple((frozenset(e.viewers), tuple(e.roots)) for e in parsed.tokens if e.viewers is not None),
    )


class TokensSource:
    """All valid tokens of a process; safe to call from many threads.

    The tokens of `[lake]` hold as they are, whatever the file says.
    """

    def __init__(
        self,
        callback_tokens: Iterable[str] = (),
        service_tokens: Iterable[str] = (),
        path: str = "",
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        writer = frozenset({Right.NOTIFY})
        task = frozenset({Right.READ, Right.HOLD, Right.OPERATE})
        # Each has a name of its own: what bounds notices counts by name.
        self._configured = (
            *((_digest(token), Grant(f"callback_tokens.{n}", writer)) for n, token in enumerate(callback_tokens, 1)),
            *((_digest(token), Grant(f"service_tokens.{n}", task)) for n, token in enumerate(service_tokens, 1)),
        )
        self._path = path
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._watch = FileWatch(path, monotonic_s)
        self._of_file = Tokens()
        self._in_force: Stamp | None = None
        self._checked_s = float("-inf")
        self.problem = ""
        """What is wrong with the file now; empty when nothing is. It holds no token."""

    @classmethod
    def of(cls, settings: LakeSettings) -> TokensSource:
        """Return the tokens that `[lake]` sets and names."""
        return cls(settings.callback_tokens, settings.service_tokens, settings.tokens_file)

    def authorise(self, given: str | None, right: Right, *, where: str, option: str) -> Grant:
        """Return what the token allows. Raises UnauthorisedError, and ForbiddenError without the right.

        `where` is the token's place in the request, `option` the setting that would hold such a token.
        """
        found = self.identify(given, where=where, option=option)
        # One text may be a callback and a service token.
        grant = next((grant for grant in found if right in grant.rights), found[0])
        grant.require_right(right)
        return grant

    def identify(self, given: str | None, *, where: str, option: str) -> list[Grant]:
        """Return all that the token allows; one text may be several tokens. Raises UnauthorisedError."""
        known = (*self._configured, *self._load().of)
        options = f"[lake] {option}{' or tokens_file' if self._path else ''}"
        if not known:
            raise UnauthorisedError(f"no token is configured on the server: set {options}")
        if not given:
            raise UnauthorisedError(f"no token in {where}")
        digest = _digest(given)
        # All of them, whichever fits: the time shows nothing about the tokens.
        found = [grant for one, grant in known if hmac.compare_digest(one, digest)]
        if not found:
            raise UnauthorisedError(f"the token in {where} is not one of {options}")
        return found

    def identify_sender(self, given: str | None, *, where: str, option: str) -> Sender:
        """Return whose the token is, for bounds. Raises UnauthorisedError."""
        first = self.identify(given, where=where, option=option)[0]
        return Sender(first.name, is_of_team=first.roots is not None)

    def find_audience(self, names: frozenset[str]) -> Audience:
        """Return which tables a person may see, by name and `role:<name>` of roles.

        Raises ForbiddenError while no valid file was ever seen: it may hide any table.
        """
        tokens = self._load()
        if self._path and self._in_force is None:
            raise ForbiddenError(f"which tables you may see is not known: {self.problem}")
        return tokens.find_audience(names)

    def _load(self) -> Tokens:
        if not self._path:
            return Tokens()
        with self._lock:
            now_s = self._monotonic_s()
            if now_s - self._checked_s >= CHECK_INTERVAL_S:
                self._checked_s = now_s
                self._refresh()
            return self._of_file

    def _refresh(self) -> None:
        try:
            stamp = self._watch.read_stamp()
            if stamp == self._in_force:
                return
            if self._watch.unchanged_s(stamp) < SETTLED.settled_after_s and self._in_force is not None:
                return
            if os.stat(self._path).st_mode & 0o002:
                raise ConfigError(f"{self._path} may be written by every user; run chmod o-w on it")
            with open(self._path, encoding="utf-8") as stream:
                self._of_file = parse_tokens(stream.read(), self._path)
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            self._say(f"[lake] tokens_file: {error}")
        else:
            self._in_force = stamp
            self._say("")
            log.info("[lake] tokens_file: %d tokens are valid", len(self._of_file.of))

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.error("%s; the last good tokens stay valid", problem)
        self.problem = problem


def _digest(token: str) -> bytes:
    # Tokens are long and random, so one round of a fast digest is enough.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
