"""Writing of files, folders and arrays, completely or not at all."""
