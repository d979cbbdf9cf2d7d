"""Which workload a record belongs to, and which objects of workloads remain."""

from collections.abc import Collection, Iterator, Mapping

from perfdag.steps.scale.model.records import Record


def top_owner(records: Mapping[str, Record], record: Record) -> Record:
    """Return the owner at the top of a record's chain of owners, or the record itself."""
    while record.owner in records:
        record = records[record.owner]
    return record


def remaining(
    records: Mapping[str, Record], names: Collection[tuple[str, str, str]]
) -> Iterator[Record]:
    """Yield existing records whose top owner has one of these kinds, namespaces and names."""
    for record in records.values():
        if "gone" not in record.stages:
            top = top_owner(records, record)
            if (top.kind, top.namespace, top.name) in names:
                yield record
