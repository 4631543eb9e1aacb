"""Turns of a run for people: in one line, whole, token by token; shared by show, report, review and export."""
