"""What the agent and the server say to each other: structs, routes, limits and the codec catalogue.

Neither torch nor a web framework is imported here, so both ends can depend on it.
"""
