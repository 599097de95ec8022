"""``bench allreduce``: measures allreduce algorithms, predicts their times, and draws them."""
