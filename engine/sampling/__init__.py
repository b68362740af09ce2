"""From logits to laws, and from laws to tokens."""
