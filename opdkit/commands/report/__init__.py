"""`opdkit report`: a run as one HTML file that opens offline, for a person who wants to see the feedback."""
