"""Pure decisions: what is due, why, and whether it is done."""
