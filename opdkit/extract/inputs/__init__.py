"""Inputs of `opdkit extract`, read in two passes: survey.py reads all of every input, units.py the units of one part."""
