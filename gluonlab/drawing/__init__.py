"""What drawings of schedules share: a page that plays them, parts of pictures, words."""
