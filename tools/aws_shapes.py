"""A request against the service model that botocore carries: types, required and unknown keys,
enums, patterns, lengths, ranges.

botocore's own ParamValidator leaves out enums, patterns and maxima, and cfn-lint does for most of
SageMaker.
"""

import functools

import botocore.session
import regex  # the patterns are Java's: the standard library's re has no \p{L}

TYPES = {
    "string": str,
    "integer": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "boolean": bool,
    "list": list,
    "map": dict,
    "structure": dict,
}


@functools.lru_cache(maxsize=None)
def service(name):
    return botocore.session.get_session().get_service_model(name)


def faults(operation, request, api="sagemaker"):
    """What is wrong with ``request`` as the input of ``operation``: a line for each fault, with the
    path to it.
    """
    return list(walk(service(api).operation_model(operation).input_shape, request, ""))


def walk(shape, value, path):
    wanted = TYPES.get(shape.type_name)
    if wanted is None:
        yield f"{path}: a {shape.type_name}, which this check does not know"
    elif not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        yield f"{path or 'the request'}: {value!r} is no {shape.type_name}"
    else:
        yield from limits(shape, value, path)
        if shape.type_name == "structure":
            yield from structure(shape, value, path)
        elif shape.type_name == "list":
            for index, item in enumerate(value):
                yield from walk(shape.member, item, f"{path}[{index}]")
        elif shape.type_name == "map":
            for key, item in value.items():
                yield from walk(shape.key, key, f"{path}.{key} (its key)")
                yield from walk(shape.value, item, f"{path}.{key}")


def limits(shape, value, path):
    known = shape.metadata
    size = value if isinstance(value, (int, float)) else len(value)
    what = "value" if isinstance(value, (int, float)) else "length"
    if "min" in known and size < known["min"]:
        yield f"{path}: {what} {size} is below {known['min']}"
    if "max" in known and size > known["max"]:
        yield f"{path}: {what} {size} is above {known['max']}"
    if isinstance(value, str):
        if "enum" in known and value not in known["enum"]:
            yield (
                f"{path}: {value!r} is none of "
                f"{', '.join(known['enum'][:8])}{', ...' * (len(known['enum']) > 8)}"
            )
        # The service means the whole text, whatever anchors the pattern has.
        if "pattern" in known and not regex.fullmatch(known["pattern"], value):
            yield f"{path}: {value!r} does not match {known['pattern']}"


def structure(shape, value, path):
    for key in shape.required_members:
        if key not in value:
            yield f"{path}.{key}".lstrip(".") + ": required, and missing"
    for key, item in value.items():
        inner = f"{path}.{key}".lstrip(".")
        if key not in shape.members:
            yield f"{inner}: unknown key"
        else:
            yield from walk(shape.members[key], item, inner)
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        yield f"{path}: give exactly one of {', '.join(shape.members)}"
