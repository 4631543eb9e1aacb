"""`opdkit check`: compare a run with what its stages recorded. Reads everything, changes nothing by default."""
