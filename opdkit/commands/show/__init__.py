"""`opdkit show`: the turns of a run in the terminal, as text in a pipe, or as JSON.

command.py   the command
choose.py    the turns that are shown
listed.py    turns as rows
tokens.py    a reply's tokens in the colours, or between the marks, of their advantages
whole.py     one turn with everything
"""
