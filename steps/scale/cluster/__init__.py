"""What a scale run needs from the cluster: namespaces, rights, locks, removal."""
