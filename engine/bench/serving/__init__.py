"""Servers as contenders: any that speaks OpenAI's dialect, seen over HTTP by one and the same client."""
