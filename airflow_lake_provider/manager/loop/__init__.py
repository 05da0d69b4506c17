"""The loop: from a notice to the evaluation of its table."""
