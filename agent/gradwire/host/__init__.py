"""What the operating system and the GPU driver say of this machine; starts without torch."""
