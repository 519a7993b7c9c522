"""KEDA's interface for external scalers as messages: package `externalscaler`, service `ExternalScaler`.

Made from a table instead of by a compiler; the numbers are KEDA's (pkg/scalers/externalscaler, from 2.0 on;
the two float fields are newer, and older versions skip them).
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

_KINDS = {"string": 9, "bool": 8, "int64": 3, "double": 1}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3

_TABLE: dict[str, tuple[tuple[str, int, str], ...]] = {
    "ScaledObjectRef": (("name", 1, "string"), ("namespace", 2, "string"), ("scalerMetadata", 3, "map")),
    "IsActiveResponse": (("result", 1, "bool"),),
    "MetricSpec": (("metricName", 1, "string"), ("targetSize", 2, "int64"), ("targetSizeFloat", 3, "double")),
    "GetMetricSpecResponse": (("metricSpecs", 1, "MetricSpec*"),),
    "GetMetricsRequest": (("scaledObjectRef", 1, "ScaledObjectRef"), ("metricName", 2, "string")),
    "MetricValue": (
        ("metricName", 1, "string"),
        ("metricValue", 2, "int64"),
        ("metricValueFloat", 3, "double"),
    ),
    "GetMetricsResponse": (("metricValues", 1, "MetricValue*"),),
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="controlplane/externalscaler.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _TABLE.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=_OPTIONAL)
            if kind in _KINDS:
                added.type = _KINDS[kind]
                continue
            added.type = _MESSAGE
            if kind == "map":
                _add_map(message)
                added.label, added.type_name = _REPEATED, f".{PACKAGE}.{name}.ScalerMetadataEntry"
            else:
                added.label = _REPEATED if kind.endswith("*") else _OPTIONAL
                added.type_name = f".{PACKAGE}.{kind.rstrip('*')}"
    return file


def _add_map(message: Any) -> None:
    """Strings by string: on the wire a repeated message with a key and a value."""
    entry = message.nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    for number, name in ((1, "key"), (2, "value")):
        entry.field.add(name=name, number=number, label=_OPTIONAL, type=_KINDS["string"])


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ScaledObjectRef = _class("ScaledObjectRef")
IsActiveResponse = _class("IsActiveResponse")
MetricSpec = _class("MetricSpec")
GetMetricSpecResponse = _class("GetMetricSpecResponse")
GetMetricsRequest = _class("GetMetricsRequest")
MetricValue = _class("MetricValue")
GetMetricsResponse = _class("GetMetricsResponse")
