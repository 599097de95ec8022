def one_f_one_b(device, devices, microbatches):
    order, forwards, backwards = [], 0, 0
    while backwards < microbatches:
        ahead = forwards - backwards  # as many are kept here
        if forwards < microbatches and ahead < devices - device:
            order.append(("forward", forwards))
            forwards += 1
        else:
            order.append(("backward", backwards))
            backwards += 1
    return order
