"""The cluster under a scale run: namespaces, rights, locks, removal."""
