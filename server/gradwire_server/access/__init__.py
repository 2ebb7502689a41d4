"""Who may do what: tokens, login links, sessions and the headers that guard browsers."""
