"""Where the time of some steps went: MXNet's trace, its operators named by the phase they serve."""
