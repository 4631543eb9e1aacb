"""`opdkit export`: write the judged turns in the formats of other trainers."""
