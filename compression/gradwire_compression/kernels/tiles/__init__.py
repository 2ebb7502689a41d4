"""What the Triton kernels share."""
