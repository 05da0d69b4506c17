"""How long a writer waited for a lock that an index builder held, from the log of Hudi's transaction manager."""

from __future__ import annotations

from benchmarks.indexing import LockUse, find_waits_s, parse_lock_uses

LOG = """\
1000 [main] State change starting for Optional.empty with latest completed action instant Optional.empty
1001 [stream thread] State change starting for Option{val=[==>1__deltacommit__INFLIGHT]} with latest completed action
1400 [main] State change started for Optional.empty with latest completed action instant Optional.empty
1500 [main] State change ending for action instant Optional.empty
1501 [main] State change ended for action instant Optional.empty
some other line
1900 [stream thread] State change started for Option{val=[==>1__deltacommit__INFLIGHT]} with latest completed action
2000 [stream thread] State change ended for action instant Option{val=[==>1__deltacommit__INFLIGHT]}
2100 [main] State change starting for Optional.empty with latest completed action instant Optional.empty
"""


def test_log_gives_each_use_of_the_lock_by_thread() -> None:
    assert parse_lock_uses(LOG.splitlines()) == [LockUse(1000, 1400, 1501), LockUse(1001, 1900, 2000)]


def test_wait_counts_only_where_the_builder_held_the_lock_meanwhile() -> None:
    builder = [LockUse(0, 100, 5_000), LockUse(9_000, 9_100, 9_200)]
    met = LockUse(2_000, 5_400, 6_000)
    came_after = LockUse(5_000, 7_500, 8_000)
    had_it_before = LockUse(8_500, 8_600, 9_050)
    met_the_short_one = LockUse(9_150, 9_300, 9_400)
    assert find_waits_s([met, came_after, had_it_before, met_the_short_one], builder) == [3.4, 0.0, 0.0, 0.15]
