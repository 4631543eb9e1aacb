"""`opdkit doctor`: print findings about packages, machine, model, server and logs, with remedies. Changes nothing."""
