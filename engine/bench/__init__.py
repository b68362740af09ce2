"""`resispec bench`: ratios of speeds, measured side by side in one process."""
