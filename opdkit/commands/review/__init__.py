"""`opdkit review`: people accept, edit or strike hints and rewards, in the browser or in a spreadsheet."""
