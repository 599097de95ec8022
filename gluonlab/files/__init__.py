"""Files and arrays that appear whole or not at all."""
