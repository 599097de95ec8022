"""``bench peers``: gluonlab, the classic Gluon loop and PyTorch on the same work."""
