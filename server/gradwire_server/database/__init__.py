"""Tables, engine and the one writer."""
