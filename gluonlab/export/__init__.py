"""Export of a trained network to files of MXNet and ONNX."""
