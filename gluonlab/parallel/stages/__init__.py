"""A network in stages: stretches of its chain of layers, on devices of their own."""
