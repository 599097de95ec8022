"""A trained network as files that need no gluonlab: MXNet's own, and ONNX."""
