def goes_on(metrics, checkpoints):
    last = 0
    for line in metrics.splitlines():
        try:
            line = json.loads(line)
        except ValueError:
            break  # the process was killed while it wrote this one
        if line["kind"] == "step":
            last = line["step"]
    usable = [step for step, whole in checkpoints.items() if whole and step <= last]
    start = max(usable, default=0)
    return start, last - start
