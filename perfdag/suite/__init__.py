"""A suite file becomes points."""
