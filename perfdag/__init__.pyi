from perfdag.analysis.compare import compare as compare
from perfdag.analysis.gate import check as check
from perfdag.analysis.verdict import Verdict as Verdict
from perfdag.problems import PerfdagError as PerfdagError
from perfdag.results.run_store import SelectionError as SelectionError
from perfdag.results.schema import load as load
from perfdag.runs import RunError as RunError
from perfdag.runs.finish import Run as Run
from perfdag.runs.local import Suite as Suite
from perfdag.store.base import StoreError as StoreError
from perfdag.suite.document import BadDocument as BadDocument
from perfdag.suite.model import Entry as Entry, Permutations as Permutations

__version__: str
IMAGES: str
