"""What of an operator's arguments the DAG's file itself says: its templates are rendered, and its settings are trusted.

Airflow renders the arguments that `expand_kwargs` takes from an XCom once more (3.3), although it spares those of
`expand`. There are values of a run's conf, of the registry and of tables among them, and a template in such a value
could read every connection and Variable.

The author of a DAG's file may execute code on workers anyway, so the settings that stand in it are as good as those of
the tables file. Those that come from a template, an XCom or a run's conf are not in it, whatever the operator was
given.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.xcom_arg import XComArg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import jinja2
    from airflow.sdk import Context


class RendersOwnText:
    """A base of this package's operators and sensors: a mapped one renders only what its DAG's file sets."""

    task_id: str
    _file_arguments: Mapping[str, Any] = MappingProxyType({})

    def settings_of_file(self, argument: str) -> dict[str, str]:
        """Return the settings that the DAG's file itself has in an argument: a mapping, or JSON."""
        return read_settings(self._file_arguments.get(argument))

    def text_of_file(self, argument: str) -> str:
        """Return the text that the DAG's file itself has in an argument, templates included; empty for none."""
        text = self._file_arguments.get(argument)
        return text if isinstance(text, str) else ""

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        if parent is self:
            # A copy of now, before any code of this task runs: a later change is not the file's.
            self._file_arguments = copy_settings(find_file_arguments(getattr(self, "dag", None), self))
        own = find_own_arguments(getattr(self, "dag", None), self.task_id) if parent is self else None
        if own is not None:
            template_fields = [name for name in template_fields if getattr(parent, name, None) == own.get(name)]
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)  # type: ignore[misc]


def find_own_arguments(dag: Any, task_id: str) -> Mapping[str, Any] | None:
    """Return the arguments that the DAG's file sets of a task mapped by `expand_kwargs`; None of any other task."""
    task = None if dag is None else dag.task_dict.get(task_id)
    expansion = getattr(task, "expand_input", None)
    found = getattr(expansion, "value", None)
    # Those of `expand` are a mapping, which Airflow spares itself.
    if isinstance(found, XComArg) or (isinstance(found, (list, tuple)) and any(isinstance(x, XComArg) for x in found)):
        arguments: Mapping[str, Any] = getattr(task, "partial_kwargs", {})
        return arguments
    return None


def find_file_arguments(dag: Any, task: Any) -> Mapping[str, Any]:
    """Return a task's arguments as the DAG's file has them: not rendered, and of a mapped one without the mapped ones.

    Nothing of a task that the file does not have, because another task created it while it ran.
    """
    written = None if dag is None else dag.task_dict.get(task.task_id)
    if written is None or written is task:
        return {}
    partial: Mapping[str, Any] | None = getattr(written, "partial_kwargs", None)
    return vars(written) if partial is None else partial


def copy_settings(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return those arguments that are text or mappings, copied."""
    return {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in arguments.items()
        if isinstance(value, (str, dict))
    }


def read_settings(argument: Any) -> dict[str, str]:
    """Return the settings of an argument, a mapping or JSON, that are plain values."""
    if isinstance(argument, str):
        try:
            argument = json.loads(argument)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(argument, dict):
        return {}
    return {str(key): str(value) for key, value in argument.items() if isinstance(value, (str, int, float))}
