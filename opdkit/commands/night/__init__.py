"""`opdkit night`, `opdkit forget` and `opdkit models`: train on logs that grow, night after night."""
