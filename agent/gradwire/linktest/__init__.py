"""`gradwire linktest`: how fast the links between the ranks are, pair by pair and collective by collective."""
