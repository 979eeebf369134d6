"""Libraries written for JAX, unchanged, on meshrt.

`python -m tests.libraries` (`make test-libraries`) runs each library's own tests twice, with JAX and with meshrt in its
place in an environment without JAX, and writes `docs/libraries.md`. `test_smoke.py` is the cheap part that `make test`
runs.

    libraries.py    which libraries, in which versions, which of their tests
    environments.py the two environments, sources with their tests
    runs.py         one run: pytest in another process, its report read
    document.py     the page
    results.json    what the last runs gave, by library
"""
