"""How near a number format's laws are to float32's."""
