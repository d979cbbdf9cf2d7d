"""Kubernetes manifests of queues."""
