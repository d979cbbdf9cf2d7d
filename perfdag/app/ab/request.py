"""What `perfdag ab` is asked to compare, and the plans of both variants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfdag.app.errors import CommandError
from perfdag.app.local_run import refuse_absent_programs
from perfdag.app.runs import check_samples
from perfdag.plan.ab import Duet, prepare_duet, stored_duet
from perfdag.results.runs import load_plan, variants
from perfdag.store.open import open_store
from perfdag.suite.load import load_suite
from perfdag.suite.model import share


@dataclass(frozen=True)
class AbRequest:
    """Two variants of a suite: settings of each and of both, or a second suite file.

    `resume` names a stored run instead. `within` is what B may cost, such as 5%. `root` is the
    store; None stands for the store of the suite, or the default one.
    """

    suite: str | None
    other: str | None
    settings: Sequence[str]
    a: Sequence[str]
    b: Sequence[str]
    only: Sequence[str]
    blocks: int
    within: str | None
    root: str | None
    resume: str | None


def plan_variants(request: AbRequest, *, here: bool = False) -> tuple[Duet, str | None]:
    """Plan both variants, or read the stored plans. Return them and the address of the store.

    `here`: this machine measures them, and must have their programs. Raises CommandError,
    BadDocument, StoreError.
    """
    try:
        limit = None if request.within is None else share(request.within)
    except ValueError as error:
        raise CommandError(f"--within: {error}") from None
    if request.resume is not None:
        return _stored_variants(request.root, request.resume, limit), request.root
    if request.suite is None:
        raise CommandError("name a suite file, or --resume RUN")
    if request.other is None and not request.a and not request.b:
        raise CommandError(
            "the variants do not differ: add --a and --b (entry.param=value), or a second suite"
        )
    other = request.other or request.suite
    a = load_suite(request.suite, [*request.settings, *request.a])
    b = load_suite(other, [*request.settings, *request.b])
    labels = (" ".join(request.a) or request.suite, " ".join(request.b) or other)
    duet = prepare_duet(a, b, labels, request.blocks, request.only, limit)
    for loaded, plan in ((a, duet.a), (b, duet.b)) if here else ():
        refuse_absent_programs(loaded, plan)
    return duet, request.root or a.suite.store


def _stored_variants(root: str | None, run_id: str, limit: float | None) -> Duet:
    """Read both plans of a stored run. A limit replaces the stored one."""
    store = open_store(root)
    plan = load_plan(store, run_id, of_ab=True)
    if plan.trigger != "ab":
        raise CommandError(f"run {run_id} is not a run of `perfdag ab`")
    plans = variants(store, plan)
    for variant in plans:
        check_samples(store, variant)
    duet = stored_duet(*plans)
    if limit is None:
        return duet
    return replace(duet, a=replace(duet.a, options={**duet.a.options, "within": limit}))
