"""MLPerf's own settings and audits, and the layout of a submission."""
