"""Actions and states of instants, as Hudi spells them."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Action(StrEnum):
    """Timeline actions, in Hudi's spelling."""

    COMMIT = "commit"
    DELTACOMMIT = "deltacommit"
    CLEAN = "clean"
    SAVEPOINT = "savepoint"
    RESTORE = "restore"
    ROLLBACK = "rollback"
    COMPACTION = "compaction"
    LOGCOMPACTION = "logcompaction"
    REPLACECOMMIT = "replacecommit"
    CLUSTERING = "clustering"
    INDEXING = "indexing"
    SCHEMACOMMIT = "schemacommit"


class State(StrEnum):
    """States of an instant, in Hudi's spelling."""

    REQUESTED = "REQUESTED"
    INFLIGHT = "INFLIGHT"
    COMPLETED = "COMPLETED"


COMPARABLE_ACTION: Mapping[Action, Action] = MappingProxyType(
    {
        Action.COMPACTION: Action.COMMIT,
        Action.LOGCOMPACTION: Action.DELTACOMMIT,
        Action.CLUSTERING: Action.REPLACECOMMIT,
    }
)
"""A service's pending action, and the action under which it completes."""

COMPLETED_WRITE_ACTIONS = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})
"""Under which actions writes, and services that rewrite data, complete."""

WRITE_ACTIONS = frozenset(
    {
        Action.COMMIT,
        Action.DELTACOMMIT,
        Action.REPLACECOMMIT,
        Action.COMPACTION,
        Action.LOGCOMPACTION,
        Action.CLUSTERING,
    }
)
