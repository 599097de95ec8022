"""A performance model that predicts training on machines that are not available.

`predict_training.predict` makes a prediction. `count_work` counts operations in a network's graph,
a roofline for each GPU gives the time of a step (`roofline`), `allreduce_time` prices the sums of
gradients, and `published_speeds` compares the model with published speeds. tools/prediction fits
and validates the model.
"""
