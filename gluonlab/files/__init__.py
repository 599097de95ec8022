"""Files, folders and arrays that are written completely or not at all."""
