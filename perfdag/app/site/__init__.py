"""The site: pages over all runs of a store, and the data that their script loads."""
