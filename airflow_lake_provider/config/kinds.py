"""What a setting may be: types for pydantic models, each with the words in which an error says what is allowed.

A model's parser, its JSON schema and its errors follow from its fields. `describe` turns an error of pydantic into one
sentence with the setting's dotted name, the value as it is written, and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from airflow_lake_provider.config.owned_options import explain_secret, is_open_secret

T = TypeVar("T")
S = TypeVar("S", bound="Settings")
Place = tuple[int | str, ...]
"""Where a value stands: names of settings and positions in lists, from the top."""


class Written(dict[str, Any]):
    """A mapping of a YAML text; `texts` has its scalars as they are written."""

    def __init__(self, items: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        super().__init__(items)
        self.texts = texts


class Settings(BaseModel):
    """Settings that users write; a frozen value. A layer of them knows which ones were set."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )
    called: ClassVar[str] = ""
    """What an error calls these settings; empty takes the name of the setting that holds them."""
    is_whole: ClassVar[bool] = False
    """Whether a layer replaces what it covers as a whole."""

    def replace(self: S, **changes: Any) -> S:
        """Return the same with other values, which are validated."""
        layer = type(self).model_validate(changes)
        return self.model_copy(update={name: getattr(layer, name) for name in changes})

    def over(self, base: S) -> S:
        """Return `base` with what was set here laid over it: sections and mappings are merged, all else is replaced."""
        names = self.model_fields_set & type(base).model_fields.keys()
        changes = {name: _merged(getattr(base, name), getattr(self, name)) for name in names}
        return base.model_copy(update=changes) if changes else base


def _merged(current: Any, value: Any) -> Any:
    if isinstance(value, Settings) and isinstance(current, Settings) and not value.is_whole:
        return value.over(current)
    return MappingProxyType({**current, **value}) if isinstance(value, Mapping) else value


# --- Types of settings


@dataclass(frozen=True, slots=True)
class Allowed:
    """What is allowed, in words, for errors."""

    words: str


@dataclass(frozen=True, slots=True)
class NullMeans:
    """What null stands for, for errors."""

    words: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text that matches a pattern as a whole; `words` says it."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the text after its type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the same as JSON schema."""
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text, re.DOTALL):
            raise ValueError(self.words)
        return text


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of another program: a mapping of texts whose keys match a pattern. Numbers and flags become texts.

    `refused` are keys that must not be written in a file, each with what to do instead.
    """

    key_pattern: str
    key_words: str
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check keys and values at once."""
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the same as JSON schema."""
        return {
            "type": "object",
            "patternProperties": {self.key_pattern: {"type": ["string", "number", "boolean"]}},
            "additionalProperties": False,
            **({"propertyNames": {"not": {"enum": sorted(self.refused)}}} if self.refused else {}),
        }

    def _check(self, options: Any) -> Mapping[str, str]:
        if not isinstance(options, Mapping):
            raise PydanticCustomError("mapping_type", "a mapping")
        for key in options:
            if not re.match(self.key_pattern, key):
                raise problem(f"{key!r} is no {self.key_words}", key)
            if key in self.refused and isinstance(options, Written):
                raise problem(f"{key} is set by the provider's services: {self.refused[key]}", key)
        require_no_secret(options)
        return MappingProxyType(texts_of(options))


def require_no_secret(options: Mapping[str, Any]) -> None:
    """Refuse a secret that is written in a file."""
    if not isinstance(options, Written):
        return
    found = next((key for key, value in options.items() if is_open_secret(key, str(value))), None)
    if found is not None:
        raise problem(explain_secret(found), found)


def texts_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options as texts, as they are written where that is known; refuse one that is no scalar."""
    written = options.texts if isinstance(options, Written) else {}
    for key, value in options.items():
        if value is None or isinstance(value, (Mapping, list)):
            given = written.get(key, "a structure")
            raise problem(f"{key} is {given!r}, allowed: a text, a number, true or false", key)
    return {key: written.get(key, str(value)) for key, value in options.items()}


def problem(message: str, key: str = "") -> PydanticCustomError:
    """Return the error of a rule that no type can state; `key` names the setting inside that breaks it."""
    return PydanticCustomError("problem", "{message}", {"message": message, "key": key})


def _whole(value: Any) -> Any:
    # As JSON schema counts them.
    return int(value) if type(value) is float and value.is_integer() else value


_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


def _clock(value: Any) -> time:
    if isinstance(value, time):
        return value
    if not isinstance(value, str) or not _CLOCK.fullmatch(value):
        raise ValueError("a time")
    return time.fromisoformat(value)


def _zone(name: str) -> str:
    try:
        return ZoneInfo(name).key
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError("no time zone") from error


From0 = Annotated[int, Field(ge=0), BeforeValidator(_whole), Allowed("a whole number from 0")]
From1 = Annotated[int, Field(ge=1), BeforeValidator(_whole), Allowed("a whole number from 1")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), Allowed("a number above 0")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Allowed("seconds above 0")]
Clock = Annotated[
    time,
    BeforeValidator(_clock),
    Allowed("a time such as 22:30, in quotes"),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{_CLOCK.pattern})$"}),
]
TimeZone = Annotated[str, Field(min_length=1), AfterValidator(_zone), Allowed("a name such as Europe/Berlin")]


def _moment_text(value: Any) -> Any:
    # An unquoted time is a time to YAML, as the Variable's own text may have it.
    return value.isoformat() if isinstance(value, datetime) else value


def _require_zone(text: str) -> str:
    try:
        if datetime.fromisoformat(text).tzinfo is not None:
            return text
    except ValueError:
        pass
    raise ValueError(MOMENT_WORDS)


MOMENT_WORDS = "a time with its zone, such as 2026-11-28T06:00:00Z"
_DAY = r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_HOUR = r"(?:[01]\d|2[0-3]):[0-5]\d"
_MOMENT = Text(rf"{_DAY}[T ]{_HOUR}(?::[0-5]\d(?:\.\d{{6}})?)?(?:Z|[+-]{_HOUR})", MOMENT_WORDS)
Moment = Annotated[str, BeforeValidator(_moment_text), AfterValidator(_require_zone), _MOMENT]
Name = Annotated[str, Text(r"[A-Za-z0-9][A-Za-z0-9_.:/@ -]*", "a name: letters, digits and _.:/@ -")]
# A file has lists, a model has tuples.
Listed = Annotated[tuple[T, ...], Field(strict=False)]


# --- The schema of settings


class _Schema(GenerateJsonSchema):
    """Leaves out the titles, which only repeat the names, and writes hours as the file has them."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        return f"{dft:%H:%M}" if isinstance(dft, time) else super().encode_default(dft)


def json_schema(model: type[Settings], title: str) -> dict[str, Any]:
    """Return the schema of settings for editors (JSON schema, draft 2020-12)."""
    schema = model.model_json_schema(schema_generator=_Schema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": title}


# --- Errors: one sentence each


def describe(model: type[Settings], error: ErrorDetails, written: Callable[[Place], str], root: str = "") -> str:
    """Return the sentence of an error that validating a mapping against `model` raised.

    `written` returns the value at a place as it is written; `root` names the mapping.
    """
    place = error["loc"]
    kind = error["type"]
    here = find_kind(model, place, root)
    around = find_kind(model, place[:-1], root)
    if kind == "extra_forbidden":
        near = get_close_matches(str(place[-1]), around.settings, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        return f"unknown setting {place[-1]!r} in {around.called}, allowed: {', '.join(around.settings)}{hint}"
    if kind == "problem":
        message = error["ctx"]["message"]
        return f"{here.name}: {message}" if here.name else str(message)
    if kind == "missing":
        return f"{around.called} must be a mapping with {place[-1]}"
    if here.settings or kind in {"mapping_type", "dict_type"}:
        return f"{here.called} must be a mapping"
    if here.items:
        return f"{here.name} must be a list of {here.items}"
    if around.items:
        return f"{around.name} must be a list of {around.items}; it holds {written(place)!r}"
    return f"{here.name} is {written(place)!r}, allowed: {here.words}"


@dataclass(frozen=True, slots=True)
class Kind:
    """What may stand at a place: a value, a section with its settings, or a list of items; each in words."""

    name: str
    called: str
    words: str = ""
    settings: tuple[str, ...] = ()
    items: str = ""


def find_kind(model: type[Settings], place: Place, root: str = "") -> Kind:
    """Return what may stand at a place of a model, and how errors call it."""
    bare, marks, is_nullable = _bare(model)
    name = ""
    called = model.called or root
    for part in place:
        annotation, outer = _step(bare, part)
        bare, marks, is_nullable = _bare(annotation, outer)
        dotted = f"{name}[{part}]" if isinstance(part, int) else f"{name}.{part}".removeprefix(".")
        called = (bare.called if _is_section(bare) else "") or dotted
        # A section that errors call by another name begins the names of its settings.
        name = dotted if called == dotted else ""
    if _is_section(bare):
        return Kind(name, called, settings=tuple(bare.model_fields))
    if get_origin(bare) is tuple:
        return Kind(name, called, items=_words(*_bare(get_args(bare)[0])[:2]))
    null = next((mark.words for mark in marks if isinstance(mark, NullMeans)), "off")
    return Kind(name, called, _words(bare, marks) + (f", or null for {null}" if is_nullable else ""))


def _words(bare: Any, marks: tuple[Any, ...]) -> str:
    said = [mark.words for mark in marks if isinstance(mark, (Allowed, Text))]
    if said:
        return said[-1]
    if _is_section(bare):
        return bare.called or f"mappings of {', '.join(bare.model_fields)}"
    if get_origin(bare) is Literal:
        return ", ".join(get_args(bare))
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        return ", ".join(bare)
    return "true, false" if bare is bool else "a text"


def _is_section(bare: Any) -> bool:
    return isinstance(bare, type) and issubclass(bare, Settings)


def _step(bare: Any, part: int | str) -> tuple[Any, tuple[Any, ...]]:
    """Return the annotation of what a section, list or mapping holds at a name or position, and the field's marks."""
    if _is_section(bare):
        known = bare.model_fields.get(str(part))
        return (Any, ()) if known is None else (known.annotation, tuple(known.metadata))
    inner = get_args(bare)
    return (inner[0 if isinstance(part, int) else -1] if inner else Any), ()


def _bare(annotation: Any, marks: tuple[Any, ...] = ()) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the type without its marks, the marks from the inside out, and whether null is allowed."""
    is_nullable = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *found = get_args(annotation)
            marks = (*found, *marks)
        elif get_origin(annotation) in {Union, UnionType}:
            (annotation,) = (arg for arg in get_args(annotation) if arg is not type(None))
            is_nullable = True
        else:
            return annotation, marks, is_nullable
