from perfdag.results.schema import load as load
from perfdag.runs.local import Suite as Suite
from perfdag.suite.model import Entry as Entry, Permutations as Permutations

__version__: str
IMAGES: str
__all__ = ["Entry", "Permutations", "Suite", "__version__", "load"]
