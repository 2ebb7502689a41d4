"""Kernels by operation: a plain reference beside each compiled one, chosen by device."""
