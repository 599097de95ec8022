"""Preparation of MXNet before it loads, and cheap calls into its engine afterwards."""
