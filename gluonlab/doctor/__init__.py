"""The doctor: finds problems with MXNet on this machine, and reports their causes and fixes."""
