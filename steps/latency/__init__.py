"""latency: transactions between two hosts with netperf."""
