"""Lower bounds of the watch lag from the API's own times, and the skew of the clocks that stamp
them.
"""

import pytest

from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.figures.skew import Skew, clock_notes, component_of, mark_late, most_off
from perfdag.steps.scale.model.chains import chain
from perfdag.steps.scale.model.stages import VMI

AT = 1_700_000_000


def row(index: int, stage: str, since: str, true: float, lag: float, ahead: float = 0.0) -> Row:
    """A change at `true` seconds, stamped in whole seconds by a clock that is `ahead`."""
    new = Row("r", index, f"v{index}", "ns", VMI, str(index), stage, since, "ok", 1.0)
    new.api_time, new.receive_time = float(int(AT + true + ahead)), AT + true + lag
    new.resolution_s, new.source, new.node = 0.05, "receive", "n0"
    return new


def changes(ahead: float, late: int | None = None) -> list[Row]:
    """100 VMIs, created in steps of 10 ms, with a phase of virt-controller 3.3 s later."""
    rows = []
    for i in range(100):
        lag = 4.0 if i == late else 0.02
        rows.append(row(i, "created", "submitted", i * 1.01, 0.02))
        rows.append(row(i, "scheduling", "pending", i * 1.01 + 3.3, lag, ahead))
    return rows


@pytest.mark.parametrize("ahead", [0.0, 2.5, -4.0])
def test_the_skew_of_a_clock_is_found_within_its_bound(ahead: float) -> None:
    skews = mark_late(rows := changes(ahead), chain("kubevirt.io/v1", VMI), 0.0)
    assert list(skews) == ["virt-controller"]
    skew = skews["virt-controller"]
    assert skew.ahead_s == pytest.approx(ahead, abs=skew.bound_s)
    assert skew.bound_s < 0.13
    assert not [row for row in rows if row.late_s], "a clock that is off is no lag"
    assert len(clock_notes(skews)) == (ahead != 0)
    if ahead:
        side = "ahead of" if ahead > 0 else "behind"
        assert (
            f"virt-controller is {abs(ahead):.1f} s {side} the API server's"
            in clock_notes(skews)[0]
        )


def test_a_row_that_came_later_than_its_error_bar_is_marked_with_the_lower_bound() -> None:
    """A lag of 4 s shows as 3 to 4 s: the API's time has whole seconds."""
    rows = changes(0.0, late=50)
    mark_late(rows, chain("kubevirt.io/v1", VMI), 0.0)
    marked = [(row.index, row.late_s) for row in rows if row.late_s]
    assert [index for index, _ in marked] == [50]
    assert 3.0 - 0.03 <= (marked[0][1] or 0) <= 4.0
    for row in rows:
        row.resolution_s = 5.0
    mark_late(rows, chain("kubevirt.io/v1", VMI), 0.0)
    assert not any(row.late_s for row in rows), "the error bar covers it"


def test_our_own_clock_is_no_skew_of_theirs() -> None:
    rows = changes(0.0)
    for row in rows:
        row.receive_time = (row.receive_time or 0) - 7.0
    (skew,) = mark_late(rows, chain("kubevirt.io/v1", VMI), 7.0).values()
    assert skew.ahead_s == pytest.approx(0.0, abs=skew.bound_s)


@pytest.mark.parametrize(
    ("kind", "stage", "node", "clock"),
    [
        ("Pod", "scheduled", "n1", "kube-apiserver"),
        (VMI, "created", None, "kube-apiserver"),
        ("Pod", "ready", "n1", "kubelet of n1"),
        (VMI, "scheduled", "n1", "virt-controller"),
        (VMI, "running", "n1", "virt-handler of n1"),
        ("Job", "succeeded", None, "controller of Job"),
    ],
)
def test_the_component_that_stamps_a_stage(
    kind: str, stage: str, node: str | None, clock: str
) -> None:
    assert component_of(kind, stage, node) == clock


def test_without_a_stamp_of_the_api_server_no_clock_is_judged() -> None:
    rows = [row(0, "scheduling", "pending", 1.0, 0.1)]
    assert mark_late(rows, chain("kubevirt.io/v1", VMI), 0.0) == {}
    many = {f"kubelet of n{i}": Skew(i / 10, 0.1, 9) for i in range(50)}
    assert list(most_off(many))[:2] == ["kubelet of n49", "kubelet of n48"]
    assert len(most_off(many)) == 20
