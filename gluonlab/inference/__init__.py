"""Predicts the classes of images with the network of a finished run (`gluonlab.predict`)."""
