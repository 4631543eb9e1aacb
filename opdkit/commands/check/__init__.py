"""`opdkit check`: compare a run with what its stages wrote. Reads everything, changes nothing unless asked."""
