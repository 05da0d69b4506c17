"""Which arguments of an operator are templates: those of the DAG's file, and not what an earlier task handed over.

Airflow renders the arguments that `expand_kwargs` takes from an XCom once more (3.3), although it spares those of
`expand`. There are values of a run's conf, of the registry and of tables among them, and a template in such a value
could read every connection and Variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.xcom_arg import XComArg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import jinja2
    from airflow.sdk import Context


class RendersOwnText:
    """A base of this package's operators and sensors: a mapped one renders only what its DAG's file sets."""

    task_id: str

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
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
