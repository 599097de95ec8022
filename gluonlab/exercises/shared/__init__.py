"""What the checkers of several labs use."""
