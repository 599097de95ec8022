"""Timelines of recorded steps: MXNet's trace, with the phase of each operator."""
