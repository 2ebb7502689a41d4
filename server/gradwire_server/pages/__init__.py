"""Pages for people: routes that render templates, and the sentences on them in both languages."""
