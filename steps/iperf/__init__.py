"""iperf2 and iperf3: network throughput between hosts."""
