import math


def best_rates(accuracy_of, ks, batch_per_device, rates):
    """Return {k: the learning rate with the highest accuracy on k devices} for each k of ks.

    Each device has batch_per_device images. If two learning rates have the same accuracy, choose
    the smaller one. If training diverges (nan), the learning rate is never the best.
    """
    best = {}
    for k in ks:
        accuracies = {lr: accuracy_of(k, k * batch_per_device, lr) for lr in sorted(rates)}
        learned = [lr for lr, accuracy in accuracies.items() if not math.isnan(accuracy)]
        best[k] = max(learned, key=accuracies.get)  # the first of equals, which is the smallest
    return best
