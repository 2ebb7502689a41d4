"""How all ranks of a model act as one: the pulse, votes on plans, rollbacks and the guard."""
