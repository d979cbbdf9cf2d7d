"""How a session begins and ends: namespaces, observer, heartbeat.

Whatever happens inside, leaving the session deletes what it made and waits until it is gone.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import apimetrics, apiservers, rights
from perfdag.steps.scale.chains import kinds_of
from perfdag.steps.scale.clock import Heartbeat, server_offset
from perfdag.steps.scale.generator import ApiSubmitter
from perfdag.steps.scale.harness import Harness
from perfdag.steps.scale.namespaces import own_namespaces
from perfdag.steps.scale.observer import Observer
from perfdag.steps.scale.removal import remove, stays, there
from perfdag.steps.scale.session import LEFT_BEHIND, Session
from perfdag.steps.scale.templates import Template

IN_FLIGHT = 1.0
"""Seconds in which the server has done or dropped a request whose connection was cut."""
AGAIN = 2.0
"""Seconds to wait for what was deleted to be gone, before what has appeared meanwhile is looked for."""


class open_session:  # noqa: N801 - reads as a function: async with open_session(...)
    """Make namespaces that are missing, take the first /metrics scrape, start heartbeat and observer; the reverse on leaving."""

    def __init__(
        self,
        kube: Kube,
        template: Template,
        namespaces: Sequence[str],
        run: str,
        *,
        expected_pods: int | None = None,
        deadline: float = math.inf,
        heartbeat: float = 0.5,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._kube, self._template, self._namespaces, self._run, self._tell = (
            kube,
            template,
            list(namespaces),
            run,
            tell,
        )
        self._expected, self._deadline, self._interval = expected_pods, deadline, heartbeat
        self._stack = AsyncExitStack()
        self._session: Session | None = None

    async def __aenter__(self) -> Session:
        kube, template = self._kube, self._template
        submitter = await ApiSubmitter.open(
            kube, template
        )  # an unknown kind is told before anything is made
        last = template.documents[-1]
        watched = kinds_of(last.api_version, last.kind)
        await rights.check(kube, template, self._namespaces, watched)
        try:
            await self._stack.enter_async_context(own_namespaces(kube, self._namespaces, self._run))
            notes: list[str] = []
            scrapes: list[apimetrics.Scrape] = []
            servers: list[Kube] = []
            try:
                servers = await self._stack.enter_async_context(apiservers.each_of(kube))
                scrapes.append(await apimetrics.scrape(servers))
            except KubeError as error:
                notes.append(f"no API server metrics: {error}")
            kinds = [(each.api_version, each.kind) for each in template.documents] + watched
            primary = [each.kind for each in template.documents]
            observer = await self._stack.enter_async_context(
                Observer(kube, self._run, kinds, self._namespaces, primary=primary)
            )
            heartbeat = await self._stack.enter_async_context(
                Heartbeat(kube, self._run, self._namespaces[0], self._interval)
            )
            offset = await server_offset(kube)
            harness = await self._stack.enter_async_context(Harness())
        except BaseException:
            await self._close()
            raise
        self._session = Session(
            kube,
            self._run,
            template,
            self._namespaces,
            observer,
            heartbeat,
            submitter,
            offset,
            scrapes,
            self._expected,
            servers,
            notes=notes,
            harness=harness,
        )
        self._session.deadline = self._deadline
        return self._session

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        """Remove what is there and what was opened; then tell what is left, since namespaces that were made here take what is in them along."""
        session, left, why, doubt = self._session, 0, "", "interrupted"
        if not session:
            await self._stack.aclose()
            return
        try:
            try:
                left = await self._remove(session)
                doubt = "interrupted" if left else ""
            except KubeError as error:
                why = str(error)
            finally:
                failed = await self._closed()
            if doubt:
                left, doubt = await self._staying(session)
            if failed:
                raise failed
        finally:
            self._tell_left(left, why, doubt)

    async def _closed(self) -> KubeError | None:
        """Close what was opened; what kept some of it from it."""
        try:
            await self._stack.aclose()
        except KubeError as error:
            return error
        return None

    def _tell_left(self, left: int, why: str, doubt: str) -> None:
        """Tell how many objects are left and `why`, or the `doubt` for which that is not known."""
        here = f"of run {self._run} are left in {', '.join(self._namespaces)}"
        how = f"`perfdag scale delete --run {self._run}` deletes them"
        if doubt:
            reasons = dict.fromkeys(each for each in (why, doubt) if each)
            self._tell(f"whether objects {here} is not known ({'; '.join(reasons)}); {how}")
        elif left:
            self._tell(f"{left} objects {here}{f' ({why})' if why else ''}; {how}")

    async def _staying(self, session: Session) -> tuple[int, str]:
        """How many objects are left in namespaces that stay, or why that is not known."""
        kube = self._kube
        try:
            stay = [name for name in self._namespaces if await stays(kube, name)]
            resources = [
                await kube.resource(each.api_version, each.kind)
                for each in self._template.documents
            ]
            listed = await there(kube, self._run, resources, stay)
        except KubeError as error:
            return 0, str(error)
        return max(len(listed), session.left(session.submissions, stay)), ""

    async def _remove(self, session: Session) -> int:
        """Delete by label: an object may be there whose answer we did not wait for. Then wait for what its owners leave behind, and delete
        what appears meanwhile. Returns how many objects are left after LEFT_BEHIND seconds of it. Raises KubeError."""
        kube = self._kube
        resources = [
            await kube.resource(each.api_version, each.kind)
            for each in self._template.documents[::-1]
        ]
        if session.in_flight:  # a request that was cut off here may still be carried out there, on a busy server long after
            await remove(kube, self._run, resources, self._namespaces, 20, LEFT_BEHIND)
            await asyncio.sleep(IN_FLIGHT)
        deadline = time.monotonic() + LEFT_BEHIND
        while True:
            listed = await remove(
                kube,
                self._run,
                resources,
                self._namespaces,
                20,
                max(0.0, deadline - time.monotonic()),
            )
            try:
                gone = await session.observer.until(
                    lambda: not session.left(session.submissions), AGAIN
                )
            except KubeError:  # of a broken watch: then by what is listed alone
                return listed
            if (gone and not listed) or time.monotonic() >= deadline:
                return max(listed, session.left(session.submissions))
