"""Inputs of `opdkit extract`, read twice: survey.py reads all of every input, then units.py the units of one part."""
