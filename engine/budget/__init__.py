"""The budget: how much speculation each request gets in a step, from what is known before drawing."""
