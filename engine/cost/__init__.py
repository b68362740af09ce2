"""What a forward of the target and a level of drafts cost: measured at start, kept right from real steps."""
