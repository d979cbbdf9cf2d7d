"""The Kubernetes client, and what is read from pods and Workflows."""
