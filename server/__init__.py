"""The server room: settings, command line, HTTP routes and metrics; knows nothing of tensors."""
