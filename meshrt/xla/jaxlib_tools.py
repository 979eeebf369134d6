"""Small tools that jaxlib ships and JAX's internal modules offer: weak caches, functions of sequences, documents.

Only `meshrt.compat` imports this.
"""

from jaxlib._pretty_printer import Color as Color
from jaxlib._pretty_printer import Doc as Doc
from jaxlib._pretty_printer import Intensity as Intensity
from jaxlib._pretty_printer import OutputFormat as OutputFormat
from jaxlib._pretty_printer import brk as brk
from jaxlib._pretty_printer import color as color
from jaxlib._pretty_printer import concat as concat
from jaxlib._pretty_printer import group as group
from jaxlib._pretty_printer import nest as nest
from jaxlib._pretty_printer import nil as nil
from jaxlib._pretty_printer import source_map as source_map
from jaxlib._pretty_printer import text as text
from jaxlib.utils import foreach as foreach
from jaxlib.utils import safe_map as safe_map
from jaxlib.utils import safe_zip as safe_zip
from jaxlib.utils import topological_sort as topological_sort
from jaxlib.weakref_lru_cache import multi_weakref_lru_cache as multi_weakref_lru_cache
from jaxlib.weakref_lru_cache import weakref_lru_cache as weakref_lru_cache
