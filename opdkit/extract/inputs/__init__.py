"""Inputs of `opdkit extract`. They are read twice: all by first_pass.py, the units of one part by second_pass.py."""
