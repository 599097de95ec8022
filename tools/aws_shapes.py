"""Validation of AWS requests against the service models of botocore.

botocore's ParamValidator checks no enums, patterns and maxima, and cfn-lint checks few of those of
SageMaker. This module checks types, required and unknown keys, enums, patterns, lengths and ranges.
"""

import functools

import botocore.session
import regex  # the patterns are Java's: the standard library's re has no \p{L}

TYPES = {
    "string": str, "integer": int, "long": int, "float": (int, float), "double": (int, float), "boolean": bool,
    "list": list, "map": dict, "structure": dict,
}  # fmt: skip


@functools.lru_cache(maxsize=None)
def service_model(name):
    return botocore.session.get_session().get_service_model(name)


def find_request_faults(operation, request, api="sagemaker"):
    """Return a line for each fault of a request as the input of an operation, with its path."""
    return list(find_value_faults(service_model(api).operation_model(operation).input_shape, request, ""))


def find_value_faults(shape, value, path):
    expected = TYPES.get(shape.type_name)
    if expected is None:
        yield f"{path}: unknown type {shape.type_name}"
    elif not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        yield f"{path or 'the request'}: {value!r} is not a valid {shape.type_name}"
    else:
        yield from find_limit_faults(shape, value, path)
        if shape.type_name == "structure":
            yield from find_structure_faults(shape, value, path)
        elif shape.type_name == "list":
            for index, item in enumerate(value):
                yield from find_value_faults(shape.member, item, f"{path}[{index}]")
        elif shape.type_name == "map":
            for key, item in value.items():
                yield from find_value_faults(shape.key, key, f"{path}.{key} (its key)")
                yield from find_value_faults(shape.value, item, f"{path}.{key}")


def find_limit_faults(shape, value, path):
    limits = shape.metadata
    size = value if isinstance(value, (int, float)) else len(value)
    quantity = "value" if isinstance(value, (int, float)) else "length"
    if "min" in limits and size < limits["min"]:
        yield f"{path}: {quantity} {size} is below {limits['min']}"
    if "max" in limits and size > limits["max"]:
        yield f"{path}: {quantity} {size} is above {limits['max']}"
    if isinstance(value, str):
        if "enum" in limits and value not in limits["enum"]:
            yield (
                f"{path}: unknown value {value!r}: choose "
                f"{', '.join(limits['enum'][:8])}{', ...' * (len(limits['enum']) > 8)}"
            )
        # The service means the whole text, whatever anchors the pattern has.
        if "pattern" in limits and not regex.fullmatch(limits["pattern"], value):
            yield f"{path}: {value!r} does not match {limits['pattern']}"


def find_structure_faults(shape, value, path):
    for key in shape.required_members:
        if key not in value:
            yield f"{path}.{key}".lstrip(".") + ": required, but missing"
    for key, item in value.items():
        inner = f"{path}.{key}".lstrip(".")
        if key not in shape.members:
            yield f"{inner}: unknown key"
        else:
            yield from find_value_faults(shape.members[key], item, inner)
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        yield f"{path}: use exactly one of {', '.join(shape.members)}"
