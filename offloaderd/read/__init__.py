"""Reading entries back, from whichever tier holds them: each once, in order, or a typed error."""
