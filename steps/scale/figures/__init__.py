"""Figures of a scale run: stage latencies, API requests, Prometheus queries."""
