"""Prepares MXNet before it is loaded, and calls its engine with little overhead afterwards."""
