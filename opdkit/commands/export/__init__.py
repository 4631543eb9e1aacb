"""`opdkit export`: judged turns in the form that other trainers read."""
