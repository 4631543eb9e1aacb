"""Inputs of `opdkit extract`, read twice: first_pass.py reads every input, second_pass.py the units of one part."""
