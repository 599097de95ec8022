"""The exercises of lab 06: memory, microbatches, devices."""

from gluonlab.exercises.lab06 import guesses, machine_numbers, means, memory, microbatches, rounds

__all__ = ["guesses", "machine_numbers", "means", "memory", "microbatches", "rounds"]
