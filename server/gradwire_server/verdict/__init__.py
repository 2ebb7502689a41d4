"""The arithmetic behind verdicts and savings: pure functions on sums of steps."""
