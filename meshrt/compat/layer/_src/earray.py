"""`jax._src.earray`: arrays of extended dtypes, which are arrays like others here."""

from meshrt import Array as EArray
from meshrt.numpy.names import missing as _missing

__all__ = ["EArray"]

__getattr__ = _missing("jax._src.earray", __all__)
