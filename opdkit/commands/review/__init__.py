"""`opdkit review`: people accept, edit or strike hints and rewards, in the browser or in a spreadsheet.

server.py    HTTP on loopback, and who may use it
api.py       requests and answers as JSON: turn views, decisions
sheet.py     the same decisions as a CSV file, written and read
"""
