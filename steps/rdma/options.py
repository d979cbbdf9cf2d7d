"""Options that `extra_args` of a suite may not pass to perftest.

They are options that a parameter sets, and options that change what perfdag starts or reads.
Source: `long_options` and the short options in src/perftest_parameters.c of perftest, 4.5-0.17 to
26.04.
"""

import re
from collections.abc import Collection

EXTRA = r"^--?[A-Za-z0-9]"
_FLAGS = "aFegzRvhbNVCHUOZP"
"""Short options without a value; others may follow in the same word."""
_OPTIONS = {
    "iters": ("n", "iterations"),
    "duration": ("D", "duration"),
    "size": ("s", "sizes"),
    "all": ("a", "sizes"),
    "mtu": ("m", "mtu"),
    "connection": ("c", "connection"),
    "ib-dev": ("d", "device"),
    "ib-port": ("i", "port"),
    "gid-index": ("x", "gid_index"),
    "rdma_cm": ("R", "rdma_cm"),
    "comm_rdma_cm": ("z", "rdma_cm"),
    "atomic_type": ("A", "atomic"),
    "use_cuda": ("", "cuda"),
    "use_cuda_bus_id": ("", "cuda"),
    "qp": ("q", "qps"),
    "bidirectional": ("b", "bidirectional"),
    "port": ("p", ""),
    "CPU-freq": ("F", ""),
    "dualport": ("O", ""),
    "report-cycles": ("C", ""),
    "report-histogrm": ("H", ""),
    "report-unsorted": ("U", ""),
    "report_gbits": ("", ""),
    "out_json": ("", ""),
    "out_json_file": ("", ""),
    "output": ("", ""),
    "run_infinitely": ("", ""),
    "help": ("h", ""),
    "version": ("V", ""),
}
"""Long option -> its letter and the parameter that sets it; perfdag sets those without one."""
WITHOUT_VALUE = {
    "aes_xts", "client", "connectionless", "cpu_util", "data_validation", "data_validation_debug",
    "disable_dynamic_polling", "disable_numa", "disable_pcie_relaxed", "dont_xchg_versions",
    "encrypt_on_tx", "events", "ipv6", "ipv6-addr", "mac_fwd", "mcg", "mr_per_qp", "noPeak",
    "no_ddp", "no_enhanced_reorder", "no_lock", "odp", "perform_warm_up", "promiscuous",
    "raw_ipv6", "raw_mcast", "report-both", "report-per-port", "reversed", "send_with_imm",
    "server", "sig_before", "sig_offload", "sniffer", "tcp", "unsolicited_write", "use-null-mr",
    "use-srq", "use_cuda_dmabuf", "use_cuda_pcie_mapping", "use_data_direct", "use_hugepages",
    "use_mlu_dmabuf", "use_musa_dmabuf", "use_musa_pcie_mapping", "use_neuron_dmabuf",
    "use_old_post_send", "use_ooo", "use_rocm_dmabuf", "use_rss", "vlan_en", "write_with_imm",
}  # fmt: skip
"""Other long options without a value, in any of these versions."""
_LETTERS = {letter: name for name, (letter, _) in _OPTIONS.items() if letter}


def refused(argument: str, parameters: Collection[str]) -> str | None:
    """Return why extra_args may not hold that word, or None; `parameters` are the benchmark's."""
    if argument.startswith("--"):
        # getopt_long(3) accepts any prefix of a name.
        prefix, equals, _ = argument[2:].partition("=")
        option = next((name for name in _OPTIONS if name.startswith(prefix)), None)
        if option is None and not equals and prefix not in WITHOUT_VALUE:
            return (
                f"{argument} takes a value and would take the next word for it;"
                f" write both as one word, such as {argument}=1"
            )
    else:
        flags, valued, value = re.findall(f"^([{_FLAGS}]*)(.?)(.*)", argument[1:])[0]
        option = next((_LETTERS[letter] for letter in flags + valued if letter in _LETTERS), None)
        if option is None and valued and not value:
            return (
                f"{argument} takes a value and would take the next word for it;"
                f" write both as one word, such as {argument}1"
            )
    if option is None:
        return None
    parameter = _OPTIONS[option][1]
    if parameter in parameters:
        return f"{argument} is perftest's --{option}: set the parameter {parameter} instead"
    return (
        f"{argument} is perftest's --{option}, which would change what is measured or read here;"
        " leave it out"
    )
