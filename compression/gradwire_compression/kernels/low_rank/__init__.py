"""Low-rank averages: one pass over a matrix adds, settles and multiplies; another writes a product of factors."""
