"""Real Hudi as the judge: random histories of one table, and after each step our answers next to Hudi's own.

`history.py` draws histories and shrinks those that fail, `actions.py` carries their steps out with real Hudi,
`hudi_answers.py` asks Hudi and `our_answers.py` this package, `judge.py` compares. `known.py` lists the differences
that are expected, each with the history that shows it. `python -m tests.oracle SEED` runs one history alone.
"""
