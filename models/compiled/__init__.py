"""Decoder layers compiled ahead of time: one compilation serves all layers of a model and all its steps."""
