import math


def training_bytes(shapes, outputs, images, states):
    parameters = sum(math.prod(shape) for shape in shapes)
    return 4 * (parameters * (1 + 1 + states) + images * sum(outputs))  # weights, gradients, states; activations
