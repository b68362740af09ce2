"""Responses: making one, telling it as events, and keeping it for later."""
