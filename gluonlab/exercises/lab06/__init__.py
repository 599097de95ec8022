"""The exercises of lab 06: memory, microbatches, devices."""

from gluonlab.exercises.lab06 import machine_numbers, memory, microbatches, rounds

__all__ = ["machine_numbers", "memory", "microbatches", "rounds"]
