"""Inputs of `opdkit extract`, read in two passes.

The first pass (survey.py) reads every input once. It pins the digest and the format of each, finds where the units of
the log lie, and cuts the log into parts. A unit is what `--limit` counts: a line, a session, or all lines that share a
logged id. The second pass (units.py) reads the units of one part, and nothing else.
"""
