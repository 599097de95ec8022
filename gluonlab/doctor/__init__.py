"""What keeps MXNet from running here, or from running well: each finding with its cause and its
cure.
"""
