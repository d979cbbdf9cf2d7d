"""Names that perfdag had in 0.1, and what to use instead of them. The table goes with 0.3.

It is a module of its own, as `perfdag --help` imports it and no pydantic.
"""

REMOVED: dict[str, str] = {
    "queue-autoscale": "scale with an HPA or a CronJob, docs/queue.md",
    "queue-load": "measure with queue-scaling, docs/queue.md",
    "autoscale=keda": "use custom, external or cron, docs/queue.md",
    "--wire": "all programs speak Intel's protocol, docs/queue.md",
    "--rate": "a client sends --req-now requests in parallel, docs/queue.md",
    "--arrival": "a client sends --req-now requests in parallel, docs/queue.md",
    "--deploy": "`kubectl apply -f` the objects before, docs/queue.md",
    "--client-url": "the client is reached through the API server, docs/queue.md",
    "runtime": "resnet50 runs PyTorch, docs/resnet50.md",
    "endpoint": "resnet50 runs PyTorch, docs/resnet50.md",
    "in_flight": "CUDA copies and computes in two streams, docs/resnet50.md",
    "graphs": "CUDA copies and computes in two streams, docs/resnet50.md",
    "resident": "samples are copied from pinned memory, docs/resnet50.md",
    "mlperf": "set min_duration and min_queries, docs/resnet50.md",
    "audits": "LoadGen's own tools make a submission, docs/resnet50.md",
    "imagenet": "resnet50 measures speed alone, docs/resnet50.md",
    "check_logits": "resnet50 measures speed alone, docs/resnet50.md",
    "max_queries": "set min_duration and min_queries, docs/resnet50.md",
    "antagonist": "measure copies with resnet50-interference, docs/resnet50.md",
    "scenario=find-peak": "sweep target_rate in Server, docs/resnet50.md",
    "scenario=accuracy": "resnet50 measures speed alone, docs/resnet50.md",
    "scenario=multi-stream": "use single-stream, docs/resnet50.md",
    **{
        name: "submit the workloads with `perfdag scale submit`, docs/scale.md"
        for scenario in (
            "fill",
            "fragmentation",
            "preemption",
            "gang",
            "reclaim",
            "failed-reclaim",
            "consolidation",
            "topology",
        )
        for name in (scenario, f"scenario={scenario}")
    },
    "rack_label": "submit the workloads with `perfdag scale submit`, docs/scale.md",
    "measure": "create the workloads with `perfdag scale submit`, docs/scale.md",
    "simulate": "apply deploy/kwok/SYSTEM.yaml, docs/scale.md",
    "scenario=capacity": "use a ladder of counts with gates, docs/scale.md",
    "capacity": "use `scale vmi ladder` with gates, docs/scale.md",
    "step": "use a ladder of counts with gates, docs/scale.md",
    "--step": "use `scale vmi ladder` with gates, docs/scale.md",
    "operation": "vmi-burst measures creation and deletion, docs/scale.md",
    "--operation": "scale vmi measures creation and deletion, docs/scale.md",
    "--config": "give --prometheus, --from and --to of scale audit, docs/scale.md",
    "--force": "end the run first, then delete its objects, docs/scale.md",
    "--confirm": "`perfdag run` measures suspicious points again by itself, docs/statistics.md",
    "--permit": "label the namespace: `install --pod-security LEVEL`, docs/cluster.md",
    "job_file": "write an entry with parameters for each job, docs/reference/benchmarks.md",
    "implementation=iperf2": "iperf3 measures: leave implementation out",
    "--chart": "`perfdag site` draws the history of a suite, docs/site.md",
    "context": "look at the dashboards of your Prometheus; `scale` has queries of its own",
    "prometheus": "look at the dashboards of your Prometheus; `scale` has queries of its own",
    "--prometheus": "look at the dashboards of your Prometheus; `scale` has queries of its own",
    "--job": "write the suite into deploy/job.yaml, docs/gpu.md",
}
"""The advice for a benchmark, a key or a value of a suite, a verb, or an option of 0.1.

A value is written as `key=value`.
"""


def removal_note(*names: str) -> str:
    """Return `NAME was removed in 0.2: what to use instead` for the first known name, or ""."""
    return next(
        (f"{name} was removed in 0.2: {REMOVED[name]}" for name in names if name in REMOVED), ""
    )
