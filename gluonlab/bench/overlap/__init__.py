"""``bench overlap``: what it costs and brings that sums of gradients begin during backward."""
