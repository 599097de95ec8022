def largest_batch(memory, budget, limit):
    fits, too_many = 0, limit + 1  # so many fit; so many do not, or do not exist
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if memory(middle) <= budget:
            fits = middle
        else:
            too_many = middle
    return fits
