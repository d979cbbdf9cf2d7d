"""The 3-D lid-driven cavity as an OpenFOAM case: its dictionaries, written from parameters.

The cube has an edge of 0.1 m. Its walls rest, except the lid, which moves at 1 m/s along x; with
nu = 0.01 m2/s, Re = 10. Sizes, time steps and solvers are those of the OpenFOAM HPC committee's
benchmark (PRACE white paper WP294, table 1, and the committee's case files). S, M and XL have
100, 200 and 400 cells an edge; halving the cell quarters the time step. XXL is not in the table:
its controlDict has the time step and step count of XL, and its 800 cells continue the doubling.
Pressure iterations are those of the cases with fixed iterations. None is published for XXL, so
the doubling continues. The velocity has 5 iterations a step. XS is for tests, and not published.
"""

from dataclasses import dataclass
from typing import Literal

EDGE = 0.1
LID_SPEED = 1.0
VISCOSITY = 0.01
CELLS_PER_EDGE = {"XS": 20, "S": 100, "M": 200, "XL": 400, "XXL": 800}
TIME_STEPS = {"XS": 20, "S": 500, "M": 2000, "XL": 100, "XXL": 100}
DELTA_T = {"XS": 5e-3, "S": 1e-3, "M": 2.5e-4, "XL": 6.25e-5, "XXL": 6.25e-5}
PRESSURE_ITERATIONS = {"XS": 250, "S": 250, "M": 650, "XL": 1300, "XXL": 2600}
GAMG_CYCLES = 10
"""V-cycles of a pressure solve with stop="iterations".

They gain six digits or more (40^3 cells); the published tolerance needs four."""
MOST_ITERATIONS = 5000
"""Limit of a pressure solve with stop="tolerance"."""

Solver = Literal["PCG", "GAMG"]
Stop = Literal["iterations", "tolerance"]
Decomposition = Literal["hierarchical", "simple", "scotch"]


@dataclass(frozen=True)
class Cavity:
    """A case: `cells` along one edge, `delta_t` in s."""

    cells: int
    time_steps: int
    delta_t: float
    solver: Solver
    stop: Stop
    pressure_iterations: int
    tolerance: float
    procs: int
    decomposition: Decomposition


def default_delta_t(cells: int) -> float:
    """Return the time step in s for a number of cells along an edge.

    The Courant number is 1 up to 100 cells; above, the step falls with the square of the cell.
    """
    return EDGE / LID_SPEED / cells * min(1.0, 100 / cells)


def pressure_iterations(size: str | None, solver: Solver) -> int:
    """Return the iterations of a pressure solve by default; published figures are for PCG."""
    return GAMG_CYCLES if solver == "GAMG" else PRESSURE_ITERATIONS[size] if size else 250


def split(procs: int) -> tuple[int, int, int]:
    """Return nx >= ny >= nz with nx*ny*nz = procs and the least surface between parts."""
    triples = [
        (x, y, procs // x // y)
        for x in range(1, procs + 1)
        if procs % x == 0
        for y in range(1, procs // x + 1)
        if procs // x % y == 0
    ]
    return min((t for t in triples if t[0] >= t[1] >= t[2]), key=sum)


def files(cavity: Cavity) -> dict[str, str]:
    """Path below the case folder -> text."""
    return {
        "system/blockMeshDict": _dictionary("blockMeshDict", _mesh(cavity)),
        "system/controlDict": _dictionary("controlDict", _control(cavity)),
        "system/fvSchemes": _dictionary("fvSchemes", _SCHEMES),
        "system/fvSolution": _dictionary("fvSolution", _solution(cavity)),
        "system/decomposeParDict": _dictionary("decomposeParDict", _decompose(cavity)),
        "constant/transportProperties": _dictionary(
            "transportProperties", f"nu [0 2 -1 0 0 0 0] {VISCOSITY:g};\n"
        ),
        "0/U": _dictionary("U", _velocity(), "volVectorField"),
        "0/p": _dictionary("p", _PRESSURE, "volScalarField"),
    }


def _dictionary(name: str, body: str, kind: str = "dictionary") -> str:
    return f"FoamFile {{ version 2.0; format ascii; class {kind}; object {name}; }}\n\n{body}"


def _mesh(cavity: Cavity) -> str:
    n = cavity.cells
    return f"""scale {EDGE:g};
vertices ( (0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 1) (1 0 1) (1 1 1) (0 1 1) );
blocks ( hex (0 1 2 3 4 5 6 7) ({n} {n} {n}) simpleGrading (1 1 1) );
edges ();
boundary
(
    lid {{ type wall; faces ( (3 7 6 2) ); }}
    walls {{ type wall; faces ( (0 4 7 3) (2 6 5 1) (1 5 4 0) (0 3 2 1) (4 5 6 7) ); }}
);
mergePatchPairs ();
"""


def _control(cavity: Cavity) -> str:
    # Time::run() ends half a step before endTime, so rounding neither adds nor drops a step.
    # The interval is so large that no field is written.
    end = cavity.delta_t * cavity.time_steps
    return f"""application icoFoam;
startFrom startTime;
startTime 0;
stopAt endTime;
endTime {end:.10g};
deltaT {cavity.delta_t:.10g};
writeControl timeStep;
writeInterval 1000000000;
writeFormat binary;
writePrecision 6;
timeFormat general;
timePrecision 10;
runTimeModifiable false;
"""


_SCHEMES = """ddtSchemes { default Euler; }
gradSchemes { default Gauss linear; }
divSchemes { default none; div(phi,U) Gauss linear; }
laplacianSchemes { default Gauss linear orthogonal; }
interpolationSchemes { default linear; }
snGradSchemes { default orthogonal; }
"""


def _solution(cavity: Cavity) -> str:
    kind = (
        "solver PCG; preconditioner DIC;"
        if cavity.solver == "PCG"
        else "solver GAMG; smoother DICGaussSeidel; nCellsInCoarsestLevel 100;"
    )
    if cavity.stop == "iterations":
        n = cavity.pressure_iterations
        pressure = f"{kind} tolerance 0; relTol 0; minIter {n}; maxIter {n};"
    else:
        pressure = f"{kind} tolerance {cavity.tolerance:g}; relTol 0; maxIter {MOST_ITERATIONS};"
    return f"""solvers
{{
    p {{ {pressure} }}
    pFinal {{ $p; }}
    U {{ solver PBiCGStab; preconditioner DILU; tolerance 1e-15; relTol 0; maxIter 5; }}
}}
PISO {{ nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }}
"""


def _decompose(cavity: Cavity) -> str:
    x, y, z = split(cavity.procs)
    text = f"numberOfSubdomains {cavity.procs};\nmethod {cavity.decomposition};\n"
    if cavity.decomposition == "scotch":
        return text
    order = " order xyz;" if cavity.decomposition == "hierarchical" else ""
    return f"{text}{cavity.decomposition}Coeffs {{ n ({x} {y} {z}); delta 0.001;{order} }}\n"


def _velocity() -> str:
    return f"""dimensions [0 1 -1 0 0 0 0];
internalField uniform (0 0 0);
boundaryField
{{
    lid {{ type fixedValue; value uniform ({LID_SPEED:g} 0 0); }}
    walls {{ type noSlip; }}
}}
"""


_PRESSURE = """dimensions [0 2 -2 0 0 0 0];
internalField uniform 0;
boundaryField
{
    lid { type zeroGradient; }
    walls { type zeroGradient; }
}
"""
