"""OpenFOAM: solver time of the lid-driven cavity."""
