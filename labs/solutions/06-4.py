def machine_numbers(spec, visible, count):
    shown = list(range(count)) if visible is None else [int(number) for number in visible.split(",")]
    names = spec.partition(":")[2]
    return shown if names == "*" else [shown[int(name)] for name in names.split(",")]
