"""Writes files, folders and arrays, completely or not at all."""
