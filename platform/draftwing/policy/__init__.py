"""How much to draft in each step."""
