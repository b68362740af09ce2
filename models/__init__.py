"""The model room: loading, KV memory, attention and draft training; knows nothing of requests."""
