"""Exports a trained network to MXNet and ONNX files."""
