"""`perfdag ab`: two variants of a suite, measured in interleaved blocks."""
