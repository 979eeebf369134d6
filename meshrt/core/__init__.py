"""Types, Jaxprs, traces and the protocol of primitives. Imports nothing else of meshrt but `errors` and `dtypes`."""
