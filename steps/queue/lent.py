"""What the API server's refusal means to a benchmark that scales or watches Deployments."""

from perfdag.benchmark import Skip


def not_lent(refusal: str, benchmark: str) -> Skip:
    """The sample of a pod whose account lacks a right: nobody's fault, with what grants it. ``refusal``: the API server's words."""
    return Skip(
        f"{refusal}; `perfdag install --store ... --allow {benchmark}`, with its other options again, grants it to its pods"
        " (with --namespaced in the installation's own namespace alone: docs/queue.md)"
    )
