"""How a session begins and ends: namespaces, observer, watch lag.

On exit, whatever happened, all objects are deleted and the session waits until they are gone.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import orjson

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.cluster import apiservers, rights
from perfdag.steps.scale.cluster.namespaces import own_namespaces
from perfdag.steps.scale.cluster.removal import namespace_stays, objects_of_run, remove
from perfdag.steps.scale.figures import api_metrics
from perfdag.steps.scale.measure.clock import server_offset
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.measure.self_load import SelfLoad
from perfdag.steps.scale.measure.submitters import ApiSubmitter
from perfdag.steps.scale.measure.watch_lag import WatchLag
from perfdag.steps.scale.model.chains import kinds_of
from perfdag.steps.scale.model.templates import Template
from perfdag.steps.scale.scenarios.session import LEFT_BEHIND, Session
from perfdag.units import plural

IN_FLIGHT = 1.0
"""Seconds in which the server has done or dropped a request whose connection was cut."""
AGAIN = 2.0
"""Seconds to wait for deleted objects before new ones are looked for."""


class open_session:  # noqa: N801 - reads as a function: async with open_session(...)
    """Start a session, and stop it on exit.

    It has namespaces, a first /metrics scrape, an observer and a probe of the watch lag.
    `patience` is how many seconds the end waits for the deletion.
    """

    def __init__(
        self,
        kube: Kube,
        template: Template,
        namespaces: Sequence[str],
        run: str,
        *,
        expected_pods: int | None = None,
        deadline: float = math.inf,
        log: Callable[[str], None] = lambda text: None,
        patience: float | None = None,
    ) -> None:
        self._kube, self._template, self._namespaces, self._run, self._log = (
            kube,
            template,
            list(namespaces),
            run,
            log,
        )
        self._expected, self._deadline = expected_pods, deadline
        self._patience = LEFT_BEHIND if patience is None else patience
        self.stack = AsyncExitStack()
        self.session: Session | None = None

    async def __aenter__(self) -> Session:
        kube, template = self._kube, self._template
        # An unknown kind fails before anything is created.
        submitter = await ApiSubmitter.open(kube, template)
        last = template.documents[-1]
        watched = kinds_of(last.api_version, last.kind)
        await rights.check(kube, template, self._namespaces, watched)
        try:
            await self.stack.enter_async_context(own_namespaces(kube, self._namespaces, self._run))
            notes: list[str] = []
            scrapes: list[api_metrics.Scrape] = []
            servers: list[Kube] = []
            try:
                servers = await self.stack.enter_async_context(apiservers.clients(kube))
                scrapes.append(await api_metrics.scrape(servers))
            except KubeError as error:
                notes.append(f"no API server metrics: {error}")
            kinds = [
                (document.api_version, document.kind) for document in template.documents
            ] + watched
            primary = [document.kind for document in template.documents]
            observer = await self.stack.enter_async_context(
                Observer(kube, self._run, kinds, self._namespaces, primary=primary)
            )
            beats = await self.stack.enter_async_context(
                WatchLag(kube, self._run, self._namespaces[0])
            )
            offset = await server_offset(kube)
            self_load = await self.stack.enter_async_context(SelfLoad())
        except BaseException:
            await self.close()
            raise
        self.session = Session(
            kube,
            self._run,
            template,
            self._namespaces,
            observer,
            beats,
            submitter,
            offset,
            scrapes,
            self._expected,
            servers,
            notes=notes,
            self_load=self_load,
        )
        self.session.deadline = self._deadline
        try:
            for namespace in self._namespaces:
                for document in template.shared:
                    body = document.render("", namespace, 0)
                    await kube.create(orjson.loads(body), namespace)
        except BaseException:
            await self.close()
            raise
        return self.session

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Delete the objects, close everything, then log what is left."""
        session, left, why, doubt = self.session, 0, "", "interrupted"
        if not session:
            await self.stack.aclose()
            return
        try:
            try:
                left = await self._remove(session)
                doubt = "interrupted" if left else ""
            except KubeError as error:
                why = str(error)
            finally:
                failed = await self._close_stack()
            if doubt:
                left, doubt = await self._left_in_namespaces(session)
            if failed:
                raise failed
        finally:
            self._log_left(left, why, doubt)

    async def _close_stack(self) -> KubeError | None:
        """Close what was opened, and return the error that prevented it."""
        try:
            await self.stack.aclose()
        except KubeError as error:
            return error
        return None

    def _log_left(self, left: int, why: str, doubt: str) -> None:
        """Log how many objects are left and `why`, or the `doubt` if that is unknown."""
        scope = f"of run {self._run} in {', '.join(self._namespaces)}"
        how = f"`perfdag scale delete --run {self._run}` deletes them"
        if doubt:
            reasons = dict.fromkeys(reason for reason in (why, doubt) if reason)
            self._log(f"whether objects {scope} are left is unknown ({'; '.join(reasons)}); {how}")
        elif left:
            reason = f" ({why})" if why else ""
            self._log(f"left behind: {plural(left, 'object')} {scope}{reason}; {how}")

    async def _left_in_namespaces(self, session: Session) -> tuple[int, str]:
        """Return how many objects are left in remaining namespaces, or why that is unknown."""
        kube = self._kube
        try:
            stay = [name for name in self._namespaces if await namespace_stays(kube, name)]
            resources = [
                await kube.resource(document.api_version, document.kind)
                for document in self._template.everything
            ]
            listed = await objects_of_run(kube, self._run, resources, stay)
        except KubeError as error:
            return 0, str(error)
        return max(len(listed), session.left(session.submissions, stay)), ""

    async def _remove(self, session: Session) -> int:
        """Delete by label, until no object is left or the patience ends.

        Labels also match objects whose creation was never answered. Returns how many objects are
        left. Raises KubeError.
        """
        kube = self._kube
        resources = [
            await kube.resource(document.api_version, document.kind)
            for document in self._template.everything[::-1]
        ]
        if session.in_flight:  # a busy server may still carry out a request that was cut off
            await remove(kube, self._run, resources, self._namespaces, 20, self._patience)
            await asyncio.sleep(IN_FLIGHT)
        deadline = time.monotonic() + self._patience
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
            except KubeError:  # the watch broke: rely on the list
                return listed
            if (gone and not listed) or time.monotonic() >= deadline:
                return max(listed, session.left(session.submissions))
