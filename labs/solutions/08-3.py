def global_accuracy(images, right, size, allreduce):
    times, correct = np.zeros(size), np.zeros(size)
    for image, is_right in zip(images, right):
        times[image] += 1
        correct[image] += is_right
    times, correct = allreduce(np.stack([times, correct]))  # how often each image came
    return float((correct / times).mean())
