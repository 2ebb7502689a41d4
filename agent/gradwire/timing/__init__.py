"""Clocks, phases of a step, exposure of communication, and the sums that windows hold."""
