"""Triggers as the triggerer makes them: of what Airflow stored."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from airflow.triggers.base import BaseTrigger


def again(trigger: BaseTrigger) -> BaseTrigger:
    """Return the trigger that is made of its class path and its arguments, which must be JSON."""
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    made = getattr(import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert isinstance(made, BaseTrigger)
    return made


async def first_event(trigger: BaseTrigger) -> dict[str, Any]:
    """Return what the trigger's first event says."""
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("no event")
