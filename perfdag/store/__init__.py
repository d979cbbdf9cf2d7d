"""The store: a folder or an S3 prefix."""
