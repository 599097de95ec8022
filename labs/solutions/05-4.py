def idle_shares(forward, backward, microbatches):
    # the first microbatch passes all stages; the others follow at the pace of the slowest stage
    there = sum(forward) + (microbatches - 1) * max(forward)
    back = sum(backward) + (microbatches - 1) * max(backward)
    step = there + back
    return [1 - microbatches * (f + b) / step for f, b in zip(forward, backward)]
