def balanced(costs, stages):
    totals = [0]
    for cost in costs:
        totals.append(totals[-1] + cost)
    # best[end]: (the largest stage, the cuts) of the layers before `end`, in so many stages as yet
    best = {end: (totals[end], []) for end in range(1, len(costs) + 1)}
    for count in range(2, stages + 1):
        best = {
            end: min(
                (max(best[cut][0], totals[end] - totals[cut]), [*best[cut][1], cut]) for cut in range(count - 1, end)
            )
            for end in range(count, len(costs) + 1)
        }
    return best[len(costs)][1]
