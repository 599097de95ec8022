"""Writes files, folders and arrays, either completely or not at all."""
