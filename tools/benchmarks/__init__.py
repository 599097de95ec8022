"""Measurements that developers make of gluonlab: python tools/benchmarks NAME."""
