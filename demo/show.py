"""What the viewer sees: one line for each table, and what happened, above it as it happens.

On a terminal the tables' lines stay at the bottom and change; elsewhere a table's line is printed when it has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

STYLES = {
    "failing": "bold red",
    "blocked": "bold red",
    "unreadable": "bold red",
    "running": "bold cyan",
    "waiting": "yellow",
    "healthy": "green",
}


@dataclass(frozen=True, slots=True)
class TableLine:
    """One table now."""

    name: str
    commits: int
    log_bytes: int
    state: str
    """The state of the Lake's pages, such as `running`."""
    headline: str
    """The sentence of the Lake's pages."""

    def text(self) -> str:
        """Return the line for an output that is no terminal."""
        size = f"{self.log_bytes / 1024:.0f} KiB of log files"
        return f"{self.name:<10} {self.commits:>3} commits {size:>22}  {self.headline}"


@dataclass
class Show:
    """Prints events, and the tables' lines."""

    console: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=False))
    clock: Callable[[], float] = time.monotonic
    title: str = ""
    live: Live | None = None

    def __post_init__(self) -> None:
        self.began_s = self.clock()
        self.seen: set[str] = set()
        self.printed: dict[str, str] = {}

    def open(self, title: str) -> None:
        """Begin with the tables' lines; `title` stands above them."""
        self.title = title
        if self.console.is_terminal:
            self.live = Live(self.render(()), console=self.console, refresh_per_second=4)
            self.live.start()

    def close(self) -> None:
        """End the tables' lines; what they show last stays."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def say(self, text: str, style: str = "") -> None:
        """Print one event with the seconds since the start."""
        self.console.print(
            Text(f"[{self.clock() - self.began_s:6.1f} s] ", style="dim") + Text(text, style=style), soft_wrap=True
        )

    def once(self, key: str, text: str, style: str = "") -> None:
        """Print an event unless one of the same key was printed."""
        if key not in self.seen:
            self.seen.add(key)
            self.say(text, style)

    def update(self, lines: Sequence[TableLine]) -> None:
        """Show the tables as they are now."""
        if self.live is not None:
            self.live.update(self.render(lines))
            return
        for line in lines:
            # The bytes of log files alone are not worth a line.
            shown = f"{line.commits} {line.headline}"
            if self.printed.get(line.name) != shown:
                self.printed[line.name] = shown
                self.say(line.text())

    def render(self, lines: Sequence[TableLine]) -> Table:
        """Return the tables' lines for a terminal."""
        table = Table(title=self.title, title_justify="left", expand=True, box=None, padding=(0, 2, 0, 0))
        for name, justify in (("table", "left"), ("commits", "right"), ("log files", "right"), ("", "left")):
            table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=name != "")
        table.columns[-1].ratio = 1
        for line in lines:
            style = STYLES.get(line.state, "")
            size = f"{line.log_bytes / 1024:,.0f} KiB"
            table.add_row(line.name, str(line.commits), size, Text(line.headline, style=style))
        return table
