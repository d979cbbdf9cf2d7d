"""Memory and disk space of the cavity.

The plan refuses a case larger than the suite's limits. The disk is checked before meshing.
"""

from perfdag.hosts.base import Host
from perfdag.hosts.filesystems import filesystem
from perfdag.outcome import Failed
from perfdag.quantities import parse_quantity
from perfdag.shape import Shape
from perfdag.steps.openfoam.params import OpenFoamParams
from perfdag.units import short

# A tenth more than measured with OpenFOAM 1912: blockMesh and icoFoam take 905 B a cell, the case
# with its mesh in text 115 B.
BASE_MEMORY, MEMORY_PER_CELL = 50 << 20, 1000
DISK_PER_CELL = 130
"""Bytes of the case for each cell; decomposePar takes the same amount once more."""


def problems(params: OpenFoamParams, shape: Shape) -> list[str]:
    """Return why the case does not fit in the memory of a pod or on the volume of the suite."""
    cells = params.cavity().cells ** 3
    memory, disk = BASE_MEMORY + MEMORY_PER_CELL * cells, _disk(params)
    messages = []
    limit = shape.resources.all_limits().get("memory")
    if limit is not None and parse_quantity(limit) < memory:
        messages.append(
            f"{cells:,} cells need {short(memory, 'B')} on the first host, which makes the whole"
            f" mesh, and resources.memory is {limit}; raise it or use fewer cells"
        )
    known = shape.volume.known_size if shape.volume is not None else None
    if known is not None and known < disk:
        messages.append(
            f"the case of {cells:,} cells needs {short(disk, 'B')}, volume.size is"
            f" {short(known, 'B')}; make it larger or use fewer cells"
        )
    return messages


def _disk(params: OpenFoamParams) -> int:
    """Return the bytes of the case with its mesh."""
    return DISK_PER_CELL * params.cavity().cells ** 3 * (2 if params.procs > 1 else 1)


def need(host: Host, root: str, params: OpenFoamParams) -> None:
    """Raise Failed if the case does not fit on the disk.

    blockMesh would stop with half a mesh and leave the disk full.
    """
    facts = filesystem(host, root)
    free, needed = facts.get("free_bytes"), _disk(params)
    if free is not None and free < needed:
        raise Failed(
            f"{facts.get('mount') or root} on {host.name} has {short(free, 'B')} free, the case of"
            f" {params.cavity().cells ** 3:,} cells needs {short(needed, 'B')};"
            " free some, use a volume or fewer cells"
        )
