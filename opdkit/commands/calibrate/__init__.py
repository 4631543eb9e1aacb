"""`opdkit calibrate`: measure how often the judge agrees with people's labels, and how many votes that takes."""
