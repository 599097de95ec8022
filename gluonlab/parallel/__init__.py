"""Strategies: how a network and its batches are laid out over devices."""
