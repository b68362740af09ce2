"""How outputs become the bodies of an answer: what each endpoint does its own way."""
