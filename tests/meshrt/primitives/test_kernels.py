"""Which kernels linear algebra calls on CUDA and ROCm devices, TPUs and CPUs, and with which settings, beside JAX."""

import re

import jax
import numpy as np
import pytest

import meshrt
import meshrt.export
import meshrt.numpy

X, WIDE = np.ones((2, 4, 4), np.float32), np.ones((2, 3, 4), np.complex64)
TAUS, DIAGONAL = X[:, 0, :3], X[:, 0]

EVERYWHERE = {
    "cholesky": lambda la: la.cholesky(X),
    "eigh": lambda la: la.eigh(X, lower=False),
    "eig": lambda la: la.eig(X, compute_left_eigenvectors=False),
    "eig complex": lambda la: la.eig(X.astype(np.complex64)),
    "qr": lambda la: la.qr(X),
    "qr pivoting": lambda la: la.qr(WIDE, pivoting=True),
    "lu": lambda la: la.lu(X),
    "svd": lambda la: la.svd(X, full_matrices=False),
    "svd by QR": lambda la: la.svd(X, algorithm=la.SvdAlgorithm.QR),
    "ormqr": lambda la: la.ormqr(X, TAUS, X, left=False, transpose=True),
    "tridiagonal": lambda la: la.tridiagonal(X),
    "tridiagonal_solve": lambda la: la.tridiagonal_solve(DIAGONAL, DIAGONAL, DIAGONAL, X),
    "perturbed": lambda la: la.tridiagonal_solve(DIAGONAL, DIAGONAL, DIAGONAL, X, perturb_singular=True),
}
ON_CPU = {
    "triangular_solve": lambda la: la.triangular_solve(X, X, lower=True, transpose_a=True, unit_diagonal=True),
    "hessenberg": lambda la: la.hessenberg(X),
    "schur": lambda la: la.schur(X),
}
ON_GPUS = {
    "eigh by rotations": lambda la: la.eigh(X, implementation=la.EighImplementation.JACOBI),
    "eig by MAGMA": lambda la: la.eig(X, implementation=la.EigImplementation.MAGMA),
    "svd wide": lambda la: la.svd(WIDE, algorithm=la.SvdAlgorithm.QR),
    "svd polar": lambda la: la.svd(WIDE, algorithm=la.SvdAlgorithm.POLAR, full_matrices=False),
}
ON_CUDA = {
    "symmetric_product": lambda la: la.symmetric_product(X, X, alpha=2.0),
    "cholesky_update": lambda la: la.cholesky_update(X[0], X[0, 0]),
}
ON_TPU = {
    "qr": lambda la: la.qr(X),
    "lu": lambda la: la.lu(X),
    "eigh": lambda la: la.eigh(X, lower=False, implementation=la.EighImplementation.JACOBI),
}
ON_ROCM = {"svd by halves": lambda la: la.svd(WIDE, algorithm=la.SvdAlgorithm.DIVIDE_AND_CONQUER)}


def calls(library, platform, function):
    """(target, settings, layouts, types) of each custom call."""
    traced = library.jit(lambda: function(library.lax.linalg)).trace()
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    found = []
    for line in text.splitlines():
        if "stablehlo.custom_call" in line:
            target = re.search(r'@(\w+)\(|call_target_name = "(\w+)"', line)
            config = re.search(r"(?:mhlo\.)?backend_config = (?:\{(.*?)\}|\"([^\"]+)\")", line)
            settings = "".join(filter(None, config.groups() if config else ())).split(", ")
            layouts = [re.sub(r"\s", "", m) for m in re.findall(r"_layouts = \[(.*?)\](?:, \w|}|>)", line)]
            types = line[line.rindex("} : " if "} : " in line else " : ") :].split(" loc(")[0]
            found.append((target[1] or target[2], sorted(settings), layouts, types.lstrip("} :")))
    return found


@pytest.mark.parametrize(
    "platform,name",
    [("cpu", n) for n in (*EVERYWHERE, *ON_CPU)]
    + [("cuda", n) for n in (*EVERYWHERE, *ON_GPUS, *ON_CUDA)]
    + [("rocm", n) for n in (*EVERYWHERE, *ON_GPUS, *ON_ROCM)],
)
def test_the_kernels_are_those_of_jax(platform, name):
    function = {**EVERYWHERE, **ON_CPU, **ON_GPUS, **ON_CUDA, **ON_ROCM}[name]
    ours, theirs = calls(meshrt, platform, function), calls(jax, platform, function)
    assert ours and ours == theirs


@pytest.mark.parametrize("name", ON_TPU)
def test_what_xla_expands_for_tpus_is_called_as_by_jax(name):
    ours, theirs = calls(meshrt, "tpu", ON_TPU[name]), calls(jax, "tpu", ON_TPU[name])
    assert ours and ours == theirs


def test_what_xla_expands_for_tpus_gives_decompositions():
    """XLA's compiler for CPUs expands these calls too."""
    x = np.random.default_rng(0).random((2, 5, 5), np.float32)
    linalg, unchecked = meshrt.numpy.linalg, [meshrt.export.DisabledSafetyCheck.platform()]
    on_tpus = lambda f: meshrt.export.export(meshrt.jit(f), platforms=["tpu"], disabled_checks=unchecked)(x).call(x)
    q, r = on_tpus(lambda x: tuple(linalg.qr(x[:, :3])))
    np.testing.assert_allclose(q @ r, x[:, :3], atol=1e-5)
    w, v = on_tpus(lambda x: tuple(linalg.eigh(x + x.mT)))
    np.testing.assert_allclose((x + x.transpose(0, 2, 1)) @ v, v * w[:, None], atol=1e-4)


@pytest.mark.parametrize("name", ["hessenberg", "schur"])
def test_what_one_platform_lacks_is_refused(name):
    for library in (jax, meshrt):
        with pytest.raises(NotImplementedError, match=f"{name}.*cuda"):
            calls(library, "cuda", ON_CPU[name])


CHOICES = {
    "eigh": lambda la: la.eigh(X, implementation=la.EighImplementation.QDWH),
    "eigh rotations": lambda la: la.eigh(X, implementation=la.EighImplementation.JACOBI),
    "eigh subset": lambda la: la.eigh(X, subset_by_index=(0, 2)),
    "svd": lambda la: la.svd(X, algorithm=la.SvdAlgorithm.JACOBI),
    "svd subset": lambda la: la.svd(X, full_matrices=False, subset_by_index=(0, 2)),
    "schur": lambda la: la.schur(X, sort_eig_vals=True),
    "half": lambda la: la.qr(X.astype(np.float16)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_the_kernels_of_a_cpu_do_not_do_is_refused(name):
    for library in (jax, meshrt):
        with pytest.raises(NotImplementedError):
            CHOICES[name](library.lax.linalg)
