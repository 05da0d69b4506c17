"""Changes in Protobuf, by a schema registry: messages made of the table's Avro schema, with field numbers that stay.

Avro has no field numbers. So the registry's last version of the subject gives them: a field keeps its number, a new one
gets the next, and a field that the table has no longer stays declared, so that no later field can get its number.

In the file of values the message of changes (mode `latest`: the row) comes first, in that of keys the key; Confluent's
wire format names a file's first message by one zero byte. Protobuf's lists and maps can be neither null nor hold nulls,
so both are messages of their own (`<Field>List`, `<Field>Map`), and what may be null in them is an `Item`.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from antlr4.error.ErrorListener import ErrorListener
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from proto_schema_parser import ast
from proto_schema_parser.generator import Generator
from proto_schema_parser.parser import Parser

from airflow_lake_provider.errors import RecordRefusedError, SinkRefusedError, SourceRefusedError
from airflow_lake_provider.replication.change import ChangeMode, RowTypes, as_single, load_json
from airflow_lake_provider.replication.formats import TypedFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from google.protobuf.message import Message

    from airflow_lake_provider.replication.change import Change, CommitRef, Schema

CHANGE = "Change"
ROW = "Row"
KEY = "Key"
DECIMAL = "Decimal"
_TIMESTAMP = ".google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RESERVED = range(19_000, 20_000)
"""Numbers that Protobuf keeps for itself."""
_SCALARS: Mapping[str, str] = MappingProxyType(
    {
        "boolean": "bool",
        "int": "int32",
        "long": "int64",
        "float": "float",
        "double": "double",
        "bytes": "bytes",
        "fixed": "bytes",
        "string": "string",
        "enum": "string",
        "decimal": DECIMAL,
        "date": "string",
        "local-timestamp-millis": "string",
        "local-timestamp-micros": "string",
        "timestamp-millis": _TIMESTAMP,
        "timestamp-micros": _TIMESTAMP,
    }
)
"""Types by logical or plain type of the table's Avro schema. Dates and times without a zone are ISO 8601."""
_NATIVE = frozenset(_SCALARS.values()) - {DECIMAL, _TIMESTAMP}

Declared: TypeAlias = "ast.Field | ast.MapField"


class Subject(Protocol):
    """One subject of a schema registry."""

    def register(self, schema: str) -> int:
        """Return the number of a schema, registered if it is new."""

    def find(self, number: int) -> str:
        """Return the schema of a number."""

    def find_latest(self) -> str | None:
        """Return the subject's last version; None before the first."""


class ProtobufFormat(TypedFormat):
    """Prints changes of one stream, with the schemas of its topic's two subjects."""

    def __init__(self, mode: ChangeMode, values: Subject, keys: Subject) -> None:
        super().__init__(mode)
        self.reader = ProtobufReader(mode, values.find)
        self._values = values
        self._keys = keys

    def make_printer(self, types: RowTypes, key: str) -> _Printer:
        """Return what prints rows of these types; `key` is one of their keys."""
        return _Printer(types, self.mode, key, self._values, self._keys)


class _Printer:
    """Prints the changes of commits with one schema."""

    def __init__(self, types: RowTypes, mode: ChangeMode, key: str, values: Subject, keys: Subject) -> None:
        self._types = types
        self._mode = mode
        self._key_schema = types.key_record(key)
        package = str(types.record.get("namespace") or "lake")
        messages = {ROW: types.record} if mode is ChangeMode.LATEST else {CHANGE: self._key_schema, ROW: types.record}
        text = print_file(package, messages, types, values.find_latest())
        self._prefix = _prefix_of(values.register(text))
        self._class = first_message(text)
        key_text = print_file(f"{package}.key", {KEY: self._key_schema}, types, keys.find_latest())
        self._key_prefix = _prefix_of(keys.register(key_text))
        self._key_class = first_message(key_text)

    def print_key(self, change: Change) -> bytes:
        return self._key_prefix + self._encode(
            self._key_class, self._types.row(change.key, self._key_schema) or {}, change
        )

    def print(self, change: Change, commit: CommitRef) -> bytes:
        values = self._types.row(change.after)
        if self._mode is not ChangeMode.LATEST:
            values = {
                "op": change.op.value,
                "commit": commit.requested_time,
                "completed": commit.completed_time,
                "key": self._types.row(change.key, self._key_schema),
                "before": self._types.row(change.before),
                "after": values,
            }
        return self._prefix + self._encode(self._class, values or {}, change)

    def _encode(self, message_class: type[Message], values: Mapping[str, Any], change: Change) -> bytes:
        try:
            descriptor: Any = message_class.DESCRIPTOR
            message = message_class(**_plain_fields(values, descriptor))
            return message.SerializeToString(deterministic=True)
        except (ValueError, TypeError, OverflowError) as error:
            raise RecordRefusedError(
                f"record {change.key} does not fit the table's Protobuf schema: {error}"
            ) from error


def _prefix_of(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + b"\0"


# --- A file of messages, from the table's types and from the version before


def print_file(package: str, records: Mapping[str, Schema], types: RowTypes, known: str | None) -> str:
    """Return the text of a file whose messages are these records, in their order.

    `known` is the subject's last version, whose numbers and fields stay. Raises SourceRefusedError for a type without a
    form here, SinkRefusedError for a last version that is no Protobuf file.
    """
    before = {} if known is None else _messages_of(_parse(known).file_elements)
    messages = [
        _change_message(schema, types, before.get(CHANGE))
        if name == CHANGE
        else _record_message(name, schema, types, before.get(name))
        for name, schema in records.items()
    ]
    used = {field.value_type if isinstance(field, ast.MapField) else field.type for field in _all_fields(messages)}
    if DECIMAL in used:
        messages.append(ast.Message(DECIMAL, [ast.Field("value", 1, "string")]))
    imports = [ast.Import("google/protobuf/timestamp.proto")] if _TIMESTAMP in used else []
    return str(Generator().generate(ast.File("proto3", None, [ast.Package(package), *imports, *messages])))


def _change_message(key: Schema, types: RowTypes, known: ast.Message | None) -> ast.Message:
    """Return the envelope of a change. Its key is a message inside: a consumer also compiles the file of keys."""
    inner = _record_message(KEY, key, types, _messages_of(known.elements if known else []).get(KEY))
    parts = [
        ("op", "string"),
        ("commit", "string"),
        ("completed", "string"),
        ("key", KEY),
        ("before", ROW),
        ("after", ROW),
    ]
    return ast.Message(CHANGE, [inner, *(ast.Field(name, at, kind) for at, (name, kind) in enumerate(parts, 1))])


def _record_message(name: str, schema: Schema, types: RowTypes, known: ast.Message | None) -> ast.Message:
    """Return the message of a record; what a field of the known one has stays, also where the record lacks it now."""
    fields = {field.name: field for field in _fields_of(known)}
    messages = _messages_of(known.elements if known else [])
    last = max((field.number for field in fields.values()), default=0)
    for field in schema["fields"]:
        if field["name"] in fields:
            number = fields[field["name"]].number
        else:
            number = last = last + 1 if last + 1 not in _RESERVED else _RESERVED.stop
        kind, inner = _type_of(field["name"], field["type"], types, messages, f"{name}.{field['name']}")
        fields[field["name"]] = _optional_field(field["name"], number, kind)
        messages |= {message.name: message for message in inner}
    return ast.Message(
        name,
        [
            *(messages[inner_name] for inner_name in sorted(messages)),
            *sorted(fields.values(), key=lambda field: field.number),
        ],
    )


def _type_of(
    field: str, schema: Schema, types: RowTypes, known: Mapping[str, ast.Message], path: str
) -> tuple[str, list[ast.Message]]:
    """Return a field's type, and the message that it needs in the scope of the field."""
    kind, _ = types.resolve(schema)
    plain = kind if isinstance(kind, str) else kind["type"]
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    title = field[:1].upper() + field[1:]
    if plain == "record":
        message = _record_message(f"{title}Record", kind, types, known.get(f"{title}Record"))
    elif plain == "array":
        message = _list_message(f"{title}List", kind["items"], types, known.get(f"{title}List"), path)
    elif plain == "map":
        message = _list_message(f"{title}Map", kind["values"], types, known.get(f"{title}Map"), path)
    else:
        found = _SCALARS.get(logical or "") or _SCALARS.get(plain)
        if found is None:
            raise SourceRefusedError(f"field {path} is of type {kind}, which has no form here: use format json")
        return found, []
    return message.name, [message]


def _list_message(name: str, items: Schema, types: RowTypes, known: ast.Message | None, path: str) -> ast.Message:
    """Return the message of a list or a map: `items` of their type, or of an `Item` where null is allowed."""
    _, is_nullable = types.resolve(items)
    scope = _messages_of(known.elements if known else [])
    if is_nullable:
        scope = _messages_of(scope["Item"].elements if "Item" in scope else [])
    kind, messages = _type_of("item", items, types, scope, f"{path}[]")
    if is_nullable:
        messages = [ast.Message("Item", [*messages, _optional_field("value", 1, kind)])]
        kind = "Item"
    field: Declared
    if name.endswith("Map"):
        field = ast.MapField("items", 1, "string", kind)
    else:
        field = ast.Field("items", 1, kind, ast.FieldCardinality.REPEATED)
    return ast.Message(name, [*messages, field])


def _optional_field(name: str, number: int, kind: str) -> ast.Field:
    # A message has presence without the word.
    return ast.Field(name, number, kind, ast.FieldCardinality.OPTIONAL if kind in _NATIVE else None)


class _Strict(ErrorListener):  # type: ignore[misc]
    """Ends at the first error: the parser itself prints it and goes on with what it understands, fewer fields."""

    def syntaxError(self, recognizer: Any, symbol: Any, line: int, column: int, message: str, error: Any) -> None:
        raise ValueError(f"line {line}:{column}: {message}")


def _set_strict(recognizer: Any) -> None:
    recognizer.removeErrorListeners()
    recognizer.addErrorListener(_Strict())


def _parse(text: str) -> ast.File:
    try:
        return Parser(setup_lexer=_set_strict, setup_parser=_set_strict).parse(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise SinkRefusedError(
            f"the schema registry has something else than a Protobuf file for this subject, {text[:200]!r}: {error}"
        ) from error


def _messages_of(elements: list[Any]) -> dict[str, ast.Message]:
    return {part.name: part for part in elements if isinstance(part, ast.Message)}


def _fields_of(message: ast.Message | None) -> list[Declared]:
    return [part for part in (message.elements if message else []) if isinstance(part, (ast.Field, ast.MapField))]


def _all_fields(messages: list[ast.Message]) -> list[Declared]:
    found: list[Declared] = []
    for message in messages:
        found += [*_fields_of(message), *_all_fields(list(_messages_of(message.elements).values()))]
    return found


# --- Classes of a file's text


def first_message(text: str) -> type[Message]:
    """Return the class of a file's first message. Raises SinkRefusedError for a text that is no such file."""
    file = _parse(text)
    try:
        name = next(part.name for part in file.file_elements if isinstance(part, ast.Message))
        package = next((part.name for part in file.file_elements if isinstance(part, ast.Package)), "")
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        body = descriptor_pb2.FileDescriptorProto(name="stream.proto", package=package, syntax="proto3")
        body.dependency.append("google/protobuf/timestamp.proto")
        body.message_type.extend(map(_describe, _messages_of(file.file_elements).values()))
        pool.AddSerializedFile(body.SerializeToString())
        found: type[Message] = message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{name}".lstrip("."))
        )
    except (StopIteration, TypeError, ValueError, KeyError) as error:
        raise SinkRefusedError(f"a Protobuf file cannot be used: {error}; it is {text[:200]!r}") from error
    return found


def _describe(message: ast.Message) -> descriptor_pb2.DescriptorProto:
    body = descriptor_pb2.DescriptorProto(name=message.name)
    body.nested_type.extend(map(_describe, _messages_of(message.elements).values()))
    for part in _fields_of(message):
        if isinstance(part, ast.MapField):
            entry = descriptor_pb2.DescriptorProto(name=f"{part.name[:1].upper()}{part.name[1:]}Entry")
            entry.options.map_entry = True
            entry.field.append(_describe_field(ast.Field("key", 1, part.key_type)))
            entry.field.append(_describe_field(ast.Field("value", 2, part.value_type)))
            body.nested_type.append(entry)
            part = ast.Field(part.name, part.number, entry.name, ast.FieldCardinality.REPEATED)
        field = _describe_field(part)
        if part.cardinality is ast.FieldCardinality.OPTIONAL:
            field.proto3_optional = True
            field.oneof_index = len(body.oneof_decl)
            body.oneof_decl.add(name=f"_{part.name}")
        body.field.append(field)
    return body


def _describe_field(part: ast.Field) -> descriptor_pb2.FieldDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto(name=part.name, number=part.number)
    is_list = part.cardinality is ast.FieldCardinality.REPEATED
    field.label = field.LABEL_REPEATED if is_list else field.LABEL_OPTIONAL
    if part.type in _NATIVE:
        field.type = getattr(field, f"TYPE_{part.type.upper()}")
    else:
        # The pool finds it by Protobuf's rules of scope.
        field.type_name = part.type
    return field


# --- Values on their way in and back


def _plain_fields(values: Mapping[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    """Return what the constructor of a record's message takes; a field that the record lacks stays absent."""
    fields = descriptor.fields_by_name
    return {name: _plain_value(value, fields[name].message_type) for name, value in values.items() if value is not None}


def _plain_value(value: Any, descriptor: Descriptor | None) -> Any:
    if descriptor is None:
        if isinstance(value, datetime):
            return value.isoformat(timespec="microseconds")
        return value.isoformat() if isinstance(value, date) else value
    if descriptor.full_name == _TIMESTAMP[1:]:
        since = value - _EPOCH
        seconds, rest = divmod(since, timedelta(seconds=1))
        return {"seconds": seconds, "nanos": rest.microseconds * 1000}
    if descriptor.name == DECIMAL:
        return {"value": f"{value:f}"}
    # An object, not a dict: an empty one is then present.
    make: Callable[..., Message] = message_factory.GetMessageClass(descriptor)
    if not descriptor.name.endswith(("List", "Map")):
        return make(**_plain_fields(value, descriptor))
    items = descriptor.fields_by_name["items"]
    if descriptor.name.endswith("List"):
        return make(items=[_item(item, items.message_type) for item in value])
    message: Any = make()
    kind = _value_of(items).message_type
    for key, item in value.items():
        if kind is None:
            message.items[key] = _plain_value(item, None)
        else:
            made = _item(item, kind)
            message.items[key].CopyFrom(
                message_factory.GetMessageClass(kind)(**made) if isinstance(made, dict) else made
            )
    return message


def _item(value: Any, descriptor: Descriptor | None) -> Any:
    if descriptor is None or descriptor.name != "Item":
        return _plain_value(value, descriptor)
    inner = {} if value is None else {"value": _plain_value(value, descriptor.fields_by_name["value"].message_type)}
    return message_factory.GetMessageClass(descriptor)(**inner)


def _value_of(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field `value` of an `Item`, or of a map's entry."""
    assert field.message_type is not None
    return field.message_type.fields_by_name["value"]


class ProtobufReader:
    """Reads keys and messages of one stream; `find` returns the schema of a number."""

    def __init__(self, mode: ChangeMode, find: Callable[[int], str]) -> None:
        self._mode = mode
        self._find = find
        self._classes: dict[int, type[Message]] = {}

    def key(self, content: bytes) -> dict[str, Any]:
        """Return the values of a record's key; in a message, an absent field is null."""
        if not content.startswith(b"\0"):
            return load_json(content.decode())
        return _as_json_fields(self._message(content))

    def after(self, content: bytes) -> dict[str, Any] | None:
        """Return the row that a message leaves; None for a delete."""
        message: Any = self._message(content)
        if self._mode is ChangeMode.LATEST:
            return _as_json_fields(message)
        return _as_json_fields(message.after) if message.HasField("after") else None

    def _message(self, content: bytes) -> Message:
        number = int.from_bytes(content[1:5], "big")
        if number not in self._classes:
            self._classes[number] = first_message(self._find(number))
        return self._classes[number].FromString(content[6:])


def _as_json_fields(message: Message) -> dict[str, Any]:
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    return {
        field.name: _as_json(getattr(message, field.name), field) if message.HasField(field.name) else None
        for field in fields
    }


def _as_json(value: Any, field: FieldDescriptor) -> Any:
    """Return a value as Spark writes it into JSON."""
    kind = field.message_type
    if kind is None:
        if field.type == FieldDescriptor.TYPE_FLOAT:
            return as_single(value)
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value
    if kind.full_name == _TIMESTAMP[1:]:
        time = _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        return f"{time.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    if kind.name == DECIMAL:
        return load_json(f'{{"value":{value.value}}}')["value"]
    if not kind.name.endswith(("List", "Map")):
        return _as_json_fields(value)
    items = kind.fields_by_name["items"]
    if kind.name.endswith("List"):
        return [_item_as_json(item, items) for item in value.items]
    return {key: _item_as_json(value.items[key], _value_of(items)) for key in value.items}


def _item_as_json(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None and field.message_type.name == "Item":
        return _as_json(value.value, _value_of(field)) if value.HasField("value") else None
    return _as_json(value, field)
