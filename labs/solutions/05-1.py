def sent_bytes(outputs, cuts, images):
    crossing = [0, *(outputs[cut - 1] for cut in cuts), 0]  # at both ends of the chain: nothing
    return [4 * images * (back + on) for back, on in zip(crossing, crossing[1:])]
