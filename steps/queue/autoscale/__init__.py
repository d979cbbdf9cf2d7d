"""Runs and scores of an autoscaler that follows the load of a queue."""
