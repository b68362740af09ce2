"""Sources: tokens that may follow a sequence, known before anything is drawn."""
