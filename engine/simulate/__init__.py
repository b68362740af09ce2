"""What speculation would gain, without models: a cost table, acceptance, and the real controller."""
