"""The chart of each benchmark; a module has the name of its benchmark."""
