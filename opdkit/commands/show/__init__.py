"""`opdkit show`: the turns of a run in the terminal, as text in a pipe, or as JSON."""
