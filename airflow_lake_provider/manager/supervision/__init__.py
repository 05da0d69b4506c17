"""What the manager watches besides tables: loops, runs, sinks, holds, and whom it notifies."""
