"""The door through which people hear of instances that need them.

Called by the sweep (`deadlines.DeadlineSweep`), in the API server. What wants to be told of failed runs hooks into the
DAG's own callbacks; what wants to be told of deadlines and of what is stuck implements `Notifier` and is given to
`DeadlineSweep` in `plugins/lake_plugin.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.manager.instances import Instance


class Notifier(Protocol):
    """Tells people; must be quick, and must not raise."""

    def deadline(self, base_path: str, instance: Instance) -> None:
        """An instance was ended because its run passed `deadline_s`."""

    def stuck(self, base_path: str, instance: Instance, on_told: Callable[[], None]) -> None:
        """An instance has stood in its state past its deadline; said once for each state of each instance.

        `on_told` is called, from any thread, when people were told: until then another server may tell them.
        """


class NoNotifier:
    """Tells nobody."""

    def deadline(self, base_path: str, instance: Instance) -> None:
        """See Notifier."""

    def stuck(self, base_path: str, instance: Instance, on_told: Callable[[], None]) -> None:
        """See Notifier."""
        on_told()
