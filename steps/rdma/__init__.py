"""perftest: bandwidth and latency of RDMA verbs."""
