"""The GPUs of hosts while a tool works on them, and whether its figures are the devices' own: the judgement of steps/resnet50 for other tools."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.hosts import Host
from perfdag.steps import gpu
from perfdag.steps.resnet50.start import against


@dataclass
class Watch:
    """`hosts`: by the host's name (gpu.by_name) its `gpus`, and after the block what they did and `against`, why the figures are not their own.

    `used` takes the uuids of the GPUs that the tool used; empty: not known, and all of a host are judged."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @property
    def against(self) -> str | None:
        """What is held against the figures; named by the host where there are several."""
        said = {name: each["against"] for name, each in self.hosts.items() if each.get("against")}
        return "; ".join(f"{name}: {why}" if len(self.hosts) > 1 else why for name, why in said.items()) or None


@contextlib.contextmanager
def watched(hosts: Sequence[Host], before: Mapping[str, list[dict[str, Any]]] | None = None) -> Iterator[Watch]:
    """Watch the GPUs of the hosts in the block. `before` is what gpu.facts said of them just now, by the same names; None: it is asked."""
    one_each = gpu.by_name(hosts)
    watch = Watch({name: {"gpus": before[name] if before else gpu.facts(host)} for name, host in one_each.items()})
    with contextlib.ExitStack() as stack:
        seen = {name: stack.enter_context(gpu.watched(host)) for name, host in one_each.items()}
        yield watch
    for name, host in one_each.items():
        here, during = watch.hosts[name], seen[name]["during"]
        own = {each["index"] for each in gpu.used(here["gpus"], watch.used) if "index" in each} or {each["index"] for each in during}
        here |= seen[name] | {"slowed": gpu.slowed([each for each in during if each["index"] in own])}
        here["against"] = against(here, gpu.facts(host), own)
