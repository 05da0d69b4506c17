"""Which due services start, in which order, within which budgets."""
