"""``bench efficiency``: predicted efficiency of training on several hosts; nothing is run."""
