"""Changes that people ask for, and what the training made of them."""
