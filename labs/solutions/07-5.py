def momentum_step(weights, gradients, velocities, lr, former_lr, momentum):
    factor = 1 if former_lr is None else lr / former_lr
    for weight, gradient, velocity in zip(weights, gradients, velocities):
        nd.sgd_mom_update(weight, gradient, velocity, out=weight, lr=lr, momentum=momentum * factor)
