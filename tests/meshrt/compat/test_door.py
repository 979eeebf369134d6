"""`import jax` gives meshrt. Each program runs in a process of its own, where JAX has not been imported."""

import os
import subprocess
import sys
import textwrap

import pytest

INSTALL = "from meshrt.compat import as_jax\njax = as_jax()\n"


def run(*command, folder=None, **more):
    environ = {**os.environ, "MESHRT_PLATFORMS": "cpu", **more}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, env=environ, cwd=folder, check=False
    )


def passes(program, install=INSTALL):
    done = run("-c", install + textwrap.dedent(program))
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_modules_are_meshrts():
    passes("""
        import importlib, importlib.metadata, sys
        import meshrt, meshrt.numpy, meshrt.scipy.special, meshrt.experimental.shard_map, meshrt.random
        import jax.numpy as jnp
        import jax.scipy.special, jax.experimental.shard_map
        from jax import lax, random
        from jax.nn.initializers import normal

        assert jnp is meshrt.numpy and sys.modules["jax.numpy"] is jnp and jax.numpy is jnp
        assert lax is meshrt.lax and random is meshrt.random and jax.jit is meshrt.jit
        assert jax.scipy.special is meshrt.scipy.special
        assert jax.experimental.shard_map is meshrt.experimental.shard_map
        assert meshrt.numpy.__spec__.name == "meshrt.numpy" and meshrt.numpy.__name__ == "meshrt.numpy"
        assert as_jax() is sys.modules["jax"] is jax
        # The version is that of JAX; the real package has not been touched, jaxlib is the real one.
        assert jax.__version__ == importlib.metadata.version("jax") == "0.10.2" == jax.version.__version__
        assert jax.__version_info__ == (0, 10, 2) and importlib.metadata.version("meshrt")
        assert importlib.metadata.version("jaxlib") and "site-packages/jaxlib" in __import__("jaxlib").__file__
        assert not any("site-packages/jax/" in (getattr(m, "__file__", None) or "") for m in list(sys.modules.values()))
    """)


def test_what_is_absent_says_so_at_the_attribute():
    passes("""
        import jax.experimental.pallas.mosaic_gpu as absent  # a public module that meshrt does not have can be imported
        from jax.experimental.pallas import mosaic_gpu
        from meshrt import errors

        assert absent is mosaic_gpu

        for what in (absent, jax, jax.numpy, jax.core, jax.extend.core, jax.interpreters.mlir, jax._src.util, jax._src):
            assert not hasattr(what, "no_such_name"), what
            try:
                what.no_such_name
            except errors.MissingFunctionError as e:
                assert "no_such_name" in str(e), e
        # (Rooms of meshrt are no modules of JAX.)
        for name in ("jax.runtime", "jax.experimental.maps", "jax.no_such_module", "jax._src.no_such_module"):
            try:
                __import__(name)
            except ModuleNotFoundError as e:
                assert e.name == name and "`import jax` gives meshrt here" in str(e)
            else:
                raise AssertionError(name)
    """)


def test_a_name_that_is_no_module_is_none_and_stays_what_it_is():
    passes("""
        import pydoc
        import jax
        from jax.experimental import pallas, sparse
        from jax.experimental.shard_map import shard_map

        for what in ("nn.relu", "experimental.sparse.BCOO", "experimental.pallas.cdiv", "experimental.pjit.pjit"):
            found = pydoc.locate(f"jax.{what}")
            assert found.__name__ == what.rpartition(".")[2], found
            try:
                __import__(f"jax.{what}")
            except ModuleNotFoundError:
                pass
            else:
                raise AssertionError(what)
        assert sparse.BCOO is pydoc.locate("jax.experimental.sparse.BCOO") and callable(pallas.cdiv)
    """)


def test_internal_modules_are_found_by_every_form_of_import():
    passes("""
        import jax._src.lax.lax, meshrt
        from jax._src import ad_util, core, random
        from jax._src.interpreters import ad, batching
        from jax._src.lax import lax

        assert random.normal is meshrt.random.normal and lax.add_p is meshrt.lax.add_p and jax._src.lax.lax is lax
        assert ad_util.Zero is ad.Zero and core.trace_state_clean() and core.Primitive is meshrt.extend.core.Primitive
        assert jax.jit(lambda x: x if core.trace_state_clean() else x + 1)(1) == 2
    """)


def test_jax_itself_must_not_have_been_imported():
    passes(
        """
        import jax
        from meshrt import errors
        from meshrt.compat import as_jax

        try:
            as_jax()
        except errors.JaxImportedError as e:
            assert isinstance(e, ImportError) and "meshrt run --as-jax" in str(e) and jax.__file__ in str(e)
        else:
            raise AssertionError("accepted")
        """,
        install="",
    )


def test_importing_meshrt_installs_nothing():
    passes(
        """
        import sys
        import meshrt
        assert not any(name.startswith(("jax.", "meshrt.compat", "meshrt.interpreters")) for name in sys.modules)
        assert not any(type(f).__name__ == "JaxFinder" for f in sys.meta_path)
        """,
        install="",
    )


def test_importing_a_module_installs_it():
    passes(
        """
        import meshrt.compat.installed
        import jax, meshrt
        assert jax.jit is meshrt.jit
        """,
        install="",
    )


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_script_runs(how, tmp_path):
    (tmp_path / "beside.py").write_text("import jax.numpy as jnp\ndouble = lambda x: jnp.sum(2 * x)\n")
    (tmp_path / "script.py").write_text(
        "import sys, beside, jax, meshrt\n"
        "print(__name__, sys.argv[1:], jax.grad(beside.double)(1.0), jax.jit is meshrt.jit)\n"
        "sys.exit(3)\n"
    )
    target = ["script.py"] if how == "script" else ["-m", "script"]
    done = run("-m", "meshrt", "run", "--as-jax", *target, "--steps", "4", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "__main__ ['--steps', '4'] 2.0 True\n"


def test_errors_of_a_script_have_their_traceback(tmp_path):
    (tmp_path / "script.py").write_text("import jax.numpy as jnp\njnp.ones(3) + jnp.ones(4)\n")
    done = run("-m", "meshrt", "run", "--as-jax", "script.py", folder=tmp_path)
    assert done.returncode == 1 and "script.py" in done.stderr and "Traceback" in done.stderr
    done = run("-m", "meshrt", "run", "no_such_script.py", folder=tmp_path)
    assert done.returncode == 2 and "no such script" in done.stderr


def test_libraries_put_functions_around_the_compiler():
    passes("""
        import jax.numpy as jnp
        from jax._src import compiler

        inner, seen = compiler.backend_compile_and_load, []

        def watched(backend, *args, **kwargs):
            seen.append(backend.platform)
            return inner(backend, *args, **kwargs)

        compiler.backend_compile_and_load = watched
        assert compiler.backend_compile_and_load is watched
        assert jax.jit(lambda x: x * 3)(jnp.ones(7)).sum() == 21 and set(seen) == {"cpu"}
        compiler.backend_compile_and_load = inner
        before = len(seen)
        jax.jit(lambda x: x * 4)(jnp.ones(9))
        assert len(seen) == before
    """)


def test_errors_and_logs_are_those_of_the_names_that_a_program_imports():
    passes("""
        import logging
        import jax
        import jax.numpy as jnp

        try:
            jax.debug.print("x", 1)
        except ValueError as e:
            assert str(e).startswith("Unused positional arguments to `jax.debug.print`: [1]"), e
        heard = {}
        for name in ("jax._src.dispatch", "jax._src.interpreters.pxla"):
            handler = logging.Handler()
            handler.emit = lambda record, name=name: heard.setdefault(name, []).append(record.getMessage())
            logging.getLogger(name).addHandler(handler)

        def f(x):
            return x + 1

        with jax.log_compiles():
            jax.jit(f)(jnp.ones(3))
        said = [text.split(" in ")[0] for text in heard["jax._src.dispatch"]]
        wanted = ["tracing f for jit", "jaxpr to MLIR module conversion jit(f)", "XLA compilation of jit(f)"]
        assert said[-3:] == [f"Finished {what}" for what in wanted], said
        told = heard["jax._src.interpreters.pxla"][-1]
        assert told.startswith("Compiling jit(f) with global shapes and types (ShapedArray(float32[3]),)."), told
        y = jnp.ones(3, bool)
        for name in heard:
            heard[name].clear()
            logging.getLogger(name).setLevel(logging.DEBUG)
        jax.jit(f)(y)
        said = [text.split(" in ")[0] for text in heard["jax._src.dispatch"]]
        assert said == [f"Finished {what}" for what in wanted], said
        (told,) = heard["jax._src.interpreters.pxla"]
        assert told.startswith("Compiling jit(f) with global shapes and types (ShapedArray(bool[3]),)."), told
    """)


def test_only_names_that_jax_has_are_written_with_it():
    passes("""
        from meshrt import errors

        kept = ["/tmp/meshrt.numpy.txt: no file", "meshrt.inspect.report", "python -m meshrt.cli", "x.meshrt.lax"]
        assert [str(errors.ArgumentValueError(text)) for text in kept] == kept
        assert str(errors.ArgumentValueError("<meshrt.numpy.ndarray>, meshrt.set_mesh")) == (
            "<jax.numpy.ndarray>, jax.set_mesh"
        )
        kept = []
        jax.jit(kept.append)(1.0)
        try:
            kept[0] + 1
        except jax.errors.UnexpectedTracerError as e:
            assert "A function transformed by JAX had a side effect" in str(e), e
    """)


def test_loggers_of_both_names_hear():
    passes("""
        import logging

        seen = []
        for name in ("meshrt", "jax"):
            handler = logging.Handler()
            handler.emit = lambda record, name=name: seen.append((name, record.name))
            logging.getLogger(name).addHandler(handler)
        with jax.log_compiles():
            jax.jit(lambda x: x + 1)(1.0)
        wanted = {(top, own) for top in ("meshrt", "jax") for own in ("meshrt.compile", "meshrt.lower")}
        assert set(seen) == wanted and len(seen) == 8, seen
        for name in [n for n in logging.root.manager.loggerDict if n.startswith("meshrt.")]:
            logger, above = logging.getLogger(name), []
            while logger is not None:
                above.append(logger.name)
                logger = logger.parent
            assert above[-3:] == ["jax", "meshrt", "root"], above
    """)


def test_modules_that_import_jax_loads_are_known_by_their_names():
    passes("""
        import sys
        import meshrt

        for name in ("tree_util", "numpy", "sharding", "lax", "nn", "random", "core", "stages"):
            assert sys.modules[f"jax.{name}"] is getattr(jax, name), name
        assert jax.config is meshrt.config  # a value under the name of a module
        import jax.tree_util
        assert jax.tree_util is meshrt.tree_util
        # Classes of packages of jax.experimental are there, and no modules that stand in for them.
        from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager as manager
        assert manager | None
    """)


def test_the_mesh_in_context_by_the_name_of_old():
    passes("""
        import numpy as np
        from jax.interpreters import pxla

        env = lambda: pxla.thread_resources.env
        assert env().physical_mesh.empty and env().empty
        mesh, seen = jax.sharding.Mesh(np.array(jax.devices()), ("x",)), []
        with mesh:
            assert env().physical_mesh is mesh and env().shape == dict(mesh.shape) and not env().empty
            jax.jit(lambda x: seen.append(env().physical_mesh) or x)(1.0)
        assert seen == [mesh] and env().empty
    """)
