def measured_idle(seconds, step, alone):
    def smallest(work):
        return min(seconds(work) for _ in range(7))

    whole = smallest(step)
    return [1 - smallest(own) / whole for own in alone]
