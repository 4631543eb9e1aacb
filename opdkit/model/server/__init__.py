"""OpenAI-compatible servers: the client, and how requests share one server."""
