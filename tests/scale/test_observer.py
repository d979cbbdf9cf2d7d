"""Whose objects the observer keeps and counts, without a cluster."""

from pathlib import Path
from typing import Any

import pytest

from perfdag.kube import Event
from perfdag.steps.scale.observer import Observer
from perfdag.steps.scale.stages import extractor


def body(uid: str, owner: str = "", name: str = "", run: str = "", ready: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"uid": uid, "name": name or uid, "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    if run:
        metadata["labels"] = {"perfdag/run": run}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}] if ready else []}}


def see(observer: Observer, kind: str, *bodies: dict[str, Any]) -> None:
    for each in bodies:
        observer._take(kind, extractor(kind), Event("MODIFIED", each, 7))


def observer(**more: Any) -> Observer:
    return Observer(None, "r", [], ["ns"], **more)  # type: ignore[arg-type]


class TestWhose:
    def test_pods_of_others_are_neither_kept_nor_counted(self) -> None:
        ours = observer()
        see(ours, "Pod", body("alone", ready=True), body("theirs", run="q", ready=True), body("p1", owner="other-job", ready=True))
        see(ours, "Job", body("other-job", run="q"), body("job", run="r"))
        see(ours, "Pod", body("p2", owner="job", ready=True))
        assert set(ours.records) == {"job", "p2"}
        assert ours.counts["Pod", "ready"] == 1

    @pytest.mark.parametrize("order", [("w", "j", "p"), ("p", "j", "w"), ("j", "p", "w")])
    def test_the_chain_of_owners_counts_in_any_order_of_arrival(self, order: tuple[str, ...]) -> None:
        made = {
            "w": ("TrainingWorkload", body("w", name="j-abc-0")),
            "j": ("RunaiJob", body("j", owner="w")),
            "p": ("Pod", body("p", owner="j", ready=True)),
        }
        ours = observer(named=("TrainingWorkload", "j-abc-"))
        for each in order:
            see(ours, *made[each])
        assert set(ours.records) == {"w", "j", "p"}
        assert ours.counts["Pod", "ready"] == ours.counts["TrainingWorkload", "created"] == 1

    def test_one_whose_owner_is_not_known_yet_outlives_a_restart(self, tmp_path: Path) -> None:
        first = observer()
        see(first, "Pod", body("p", owner="job", ready=True))
        first.save(tmp_path / "state")
        second = observer()
        second.restore(tmp_path / "state")
        assert second.counts["Pod", "ready"] == 0
        see(second, "Job", body("job", run="r"))
        assert second.counts["Pod", "ready"] == 1

    def test_one_that_was_ready_and_failed_is_one(self) -> None:
        ours = observer()
        see(ours, "Pod", body("p", run="r", ready=True))
        ours.records["p"].put("failed")
        assert ours.reached("Pod", "ready", "failed") == 1

    def test_warnings_of_other_objects_are_not_ours(self) -> None:
        ours = observer()
        see(ours, "Pod", body("p", run="r"))
        for uid in ("p", "q"):
            event = {"metadata": {}, "involvedObject": {"uid": uid, "kind": "Pod"}, "reason": "Failed", "type": "Warning", "message": "no"}
            see(ours, "Event", event)
        assert ours.reasons == {"Pod Failed: no": 1}
