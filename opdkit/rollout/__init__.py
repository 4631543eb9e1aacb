"""`opdkit rollout`: fresh replies of the student to the hinted turns of a run."""
