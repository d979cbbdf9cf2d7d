"""Mark the rows that were later than their error bars, and store the skew of clocks."""

from typing import Any

from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.figures.skew import clock_notes, mark_late, most_off
from perfdag.steps.scale.model.chains import Step, chain
from perfdag.steps.scale.scenarios.session import Session


def clock_facts(session: Session, rows: list[Row], more: tuple[Step, ...] = ()) -> dict[str, Any]:
    """Set `late_s` of the rows, add notes to the session, and return the clocks that are off."""
    last = session.template.documents[-1]
    skews = mark_late(rows, (*chain(last.api_version, last.kind), *more), session.offset.seconds)
    session.notes += clock_notes(skews)
    if late := [row.late_s for row in rows if row.late_s]:
        session.notes.append(
            f"{len(late)} rows were later than their error bars, by the API's times {max(late):.1f}"
            " s or more (late_s)"
        )
    return {"clock_skews": most_off(skews)}
