"""How much memory and disk the cavity takes: refused when planning where the suite says that there is less, else asked before the mesh is made."""

from typing import TYPE_CHECKING

from perfdag.benchmark import Failed
from perfdag.hosts import Host
from perfdag.quantities import parse_quantity
from perfdag.shape import Shape
from perfdag.steps.filesystems import filesystem
from perfdag.units import short

if TYPE_CHECKING:
    from perfdag.steps.openfoam import OpenFoamParams

# a tenth more than measured with OpenFOAM 1912: blockMesh and icoFoam alike 905 B, the case with its mesh in text 115 B
BASE_MEMORY, MEMORY_PER_CELL = 50 << 20, 1000
DISK_PER_CELL = 130  # as much again where decomposePar cuts it


def problems(params: "OpenFoamParams", shape: Shape) -> list[str]:
    """What of the case does not fit in the memory of a pod or on the volume, where the suite says how large they are."""
    cells = params.cavity().cells ** 3
    memory, disk = BASE_MEMORY + MEMORY_PER_CELL * cells, _disk(params)
    found = []
    given = shape.resources.get("memory")
    if given is not None and parse_quantity(given) < memory:
        found.append(
            f"{cells:,} cells need {short(memory, 'B')} on the first host, which makes the whole mesh, and resources.memory is {given};"
            " raise it or use fewer cells"
        )
    known = shape.volume.known_size if shape.volume is not None else None
    if known is not None and known < disk:
        found.append(
            f"the case of {cells:,} cells needs {short(disk, 'B')}, volume.size is {short(known, 'B')}; make it larger or use fewer cells"
        )
    return found


def _disk(params: "OpenFoamParams") -> int:
    """Bytes of the case with its mesh."""
    return DISK_PER_CELL * params.cavity().cells ** 3 * (2 if params.procs > 1 else 1)


def need(host: Host, root: str, params: "OpenFoamParams") -> None:
    """Raise Failed where the case would not fit: blockMesh ends with half a mesh then, and the disk is full for all others."""
    found = filesystem(host, root)
    free, needed = found.get("free_bytes"), _disk(params)
    if free is not None and free < needed:
        raise Failed(
            f"{found.get('mount') or root} on {host.name} has {short(free, 'B')} free, the case of {params.cavity().cells ** 3:,} cells needs"
            f" {short(needed, 'B')}; free some, use a volume or fewer cells"
        )
