"""Inputs of `opdkit extract`, read in two passes.

The first pass (survey.py) reads every input once. It pins the digest and the format of each, finds where the units of
the log lie, and cuts the log into parts. A unit is what `--limit` counts: a line, a session, or all lines that share a
logged id. The second pass (units.py) reads the units of one part, and nothing else.

files.py     the files behind the arguments; how they are unpacked and split into lines
parquet.py   rows of Parquet files, as lines of JSON
survey.py    the first pass
index.py     where the lines of one unit lie; used by the first pass
units.py     the second pass
"""
