"""Describes allreduce algorithms as schedules of transfers; verifies, runs and draws schedules."""
