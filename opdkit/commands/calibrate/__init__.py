"""`opdkit calibrate`: how often the judge is right, by labels that people gave, and how many votes that takes."""
