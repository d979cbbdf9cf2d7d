"""What a terminal shows: tables, and the progress of a run."""
