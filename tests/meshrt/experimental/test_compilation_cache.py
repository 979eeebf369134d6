"""The directory of compiled programs under JAX's names."""

import pytest

import meshrt
from meshrt.experimental.compilation_cache import compilation_cache
from meshrt.runtime import events


@pytest.fixture
def as_before():
    before = meshrt.config.compilation_cache_dir
    yield
    meshrt.config.update("compilation_cache_dir", before)


def test_a_program_is_kept_there_and_found_when_it_is_forgotten(tmp_path, as_before):
    compilation_cache.set_cache_dir(tmp_path)
    assert int(meshrt.jit(lambda x: x * 3 + 1)(2)) == 7
    assert list(tmp_path.rglob("*.xla"))
    meshrt.clear_caches()
    compilation_cache.reset_cache()
    with events.count("persistent_hit", "compile") as n:
        assert int(meshrt.jit(lambda x: x * 3 + 1)(2)) == 7
    assert n.persistent_hit and not n.compile


@pytest.mark.parametrize("path", [None, 3, b"bytes"])
def test_what_is_no_path(path, as_before):
    with pytest.raises(TypeError, match="set_cache_dir: path must be a str"):
        compilation_cache.set_cache_dir(path)
