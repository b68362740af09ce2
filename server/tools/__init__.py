"""Tool calls: asked for in the model's own format, held to their schemas, and read back from its text."""
