def cheapest(steps, seconds, counts, deadline):
    offers = []
    for batch, number in steps.items():
        for devices in counts:
            if number is None or batch % devices:
                continue
            time = number * seconds(batch, devices)
            if time <= deadline:
                offers.append((devices * time, time, devices, batch))
    return min(offers)[2:] if offers else None
