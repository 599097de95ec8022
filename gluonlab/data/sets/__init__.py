"""Loads data sets by name, or from the user's arrays, image files or Gluon data sets."""
