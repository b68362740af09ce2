"""What a request may say: allowed tokens and grammars, as one set of allowed tokens at every node."""
