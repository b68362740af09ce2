"""``resispec top``: a running server's live figures in a terminal."""
