"""A performance model that predicts the training speed on machines that you don't have.

- `predict_training`: the prediction (`predict_training.predict`), and its text output.
- `count_work`: the operations and memory traffic of a network, counted in its graph.
- `roofline`: the time of a step on one GPU, from a roofline model.
- `gradient_sum_time`: the time to sum the gradients of all GPUs.
- `gpu_specifications`: the data sheets of GPUs, and the machines.
- `published_speeds`: the comparison of the model with published speeds.

tools/prediction fits and validates the model.
"""
