"""Describes allreduce algorithms as schedules of transfers, and verifies, runs and draws schedules."""
