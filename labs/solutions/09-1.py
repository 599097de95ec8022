def allreduce(arrays):
    total = arrays[0]
    for other in arrays[1:]:
        total += other.as_in_context(total.ctx)  # in place: total is still the array that the caller has
    for other in arrays[1:]:
        total.copyto(other)  # into the caller's array, not a new one under its place in the list
