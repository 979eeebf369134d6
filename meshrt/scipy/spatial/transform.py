"""Rotations of space: names and signatures are those of ``jax.scipy.spatial.transform``.

A rotation is a unit quaternion (x, y, z, w), of which every function takes stacks [..., 4]. Formulas: Shuster, "A
survey of attitude representations", 1993; angles of Euler: Bernardes and Viollet, "Quaternion to Euler angles
conversion", 2022.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, random
from meshrt.contexts import usual_promotion
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing
from meshrt.scipy.operands import separate

__all__ = ["Rotation", "Slerp"]
__getattr__ = _missing(__name__, __all__)

# Below this angle, series in it stand for quotients by its sine.
_SMALL = 1e-3


class Rotation(NamedTuple):
    """One rotation, or a stack of them, as quaternions [..., 4] with the real part last.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> quarter = msp.spatial.transform.Rotation.from_euler("z", 90.0, degrees=True)
    >>> mnp.round(quarter.apply(mnp.array([1.0, 0.0, 0.0])))
    Array([0., 1., 0.], dtype=float32)
    """

    quat: Any

    @classmethod
    def concatenate(cls, rotations: Sequence[Rotation]) -> Rotation:
        """One stack of several stacks."""
        return cls(jnp.concatenate([r.quat for r in rotations]))

    @classmethod
    def from_euler(cls, seq: str, angles: Any, degrees: bool = False) -> Rotation:
        """Rotations about the axes that `seq` names, by `angles` [..., len(seq)]: fixed axes for small letters, axes
        that turn along for capitals.

        Raises:
          ArgumentValueError: `seq` is not one to three of such letters, neighbours different, or not one per angle.
        """
        axes, turning = _axes(seq, range(1, 4), "non-empty string of upto 3 characters")
        (angles,) = separate("from_euler", jnp.atleast_1d(jnp.asarray(angles)))
        if angles.shape[-1] != len(axes):
            raise errors.ArgumentValueError(
                f"from_euler: `angles` of shape {angles.shape} should have one entry per axis of {seq!r} last"
            )
        return cls(_from_euler(angles, axes, turning, bool(degrees)))

    @classmethod
    def from_matrix(cls, matrix: Any) -> Rotation:
        """From rotation matrices [..., 3, 3]."""
        return cls(_from_matrix(*separate("from_matrix", matrix)))

    @classmethod
    def from_mrp(cls, mrp: Any) -> Rotation:
        """From modified Rodrigues parameters [..., 3]: the axis times the tangent of a quarter of the angle."""
        return cls(_from_mrp(*separate("from_mrp", mrp)))

    @classmethod
    def from_quat(cls, quat: Any) -> Rotation:
        """From quaternions [..., 4] of any length but 0."""
        return cls(_normalised(*separate("from_quat", quat)))

    @classmethod
    def from_rotvec(cls, rotvec: Any, degrees: bool = False) -> Rotation:
        """From axes times angles, [..., 3]."""
        (rotvec,) = separate("from_rotvec", rotvec)
        return cls(_from_rotvec(jnp.deg2rad(rotvec) if degrees else rotvec))

    @classmethod
    def identity(cls, num: int | None = None, dtype: Any = float) -> Rotation:
        """The rotation that moves nothing, or `num` of them."""
        return cls(jnp.tile(jnp.array([0, 0, 0, 1], dtype), () if num is None else (num, 1)))

    @classmethod
    def random(cls, random_key: Any, num: int | None = None) -> Rotation:
        """A rotation drawn uniformly, or `num` of them."""
        return cls(_normalised(random.normal(random_key, (4,) if num is None else (num, 4))))

    def __getitem__(self, indexer: Any) -> Rotation:
        """Some of a stack. ArgumentTypeError if this is one rotation."""
        if self.single:
            raise errors.ArgumentTypeError("Single rotation is not subscriptable.")
        return Rotation(self.quat[indexer])

    def __len__(self) -> int:
        """The length of the stack. ArgumentTypeError if this is one rotation."""
        if self.single:
            raise errors.ArgumentTypeError("Single rotation has no len().")
        return int(self.quat.shape[0])

    def __mul__(self, other: Any) -> Rotation:
        """The rotation `other` and then this one."""
        return Rotation(_normalised(_product(self.quat, other.quat)))

    def apply(self, vectors: Any, inverse: bool = False) -> Any:
        """Vectors [..., 3], rotated; or rotated back."""
        return _applied(self.quat, vectors, bool(inverse))

    def as_euler(self, seq: str, degrees: bool = False) -> Any:
        """Angles [..., 3] about the axes that `seq` names, as `from_euler` takes them. Where the middle one makes the
        others indistinguishable the third is 0.

        Raises:
          ArgumentValueError: `seq` is not three letters, neighbours different.
        """
        axes, turning = _axes(seq, (3,), "3 axes")
        angles = _as_euler(jnp.asarray(self.quat), axes, turning)
        return jnp.rad2deg(angles) if degrees else angles

    def as_matrix(self) -> Any:
        """Matrices [..., 3, 3]."""
        return _as_matrix(jnp.asarray(self.quat))

    def as_mrp(self) -> Any:
        """Modified Rodrigues parameters [..., 3]."""
        return _as_mrp(jnp.asarray(self.quat))

    def as_rotvec(self, degrees: bool = False) -> Any:
        """Axes times angles, [..., 3]; angles are between 0 and pi."""
        rotvec = _as_rotvec(jnp.asarray(self.quat))
        return jnp.rad2deg(rotvec) if degrees else rotvec

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Any:
        """Quaternions [..., 4]; `canonical`: of the two of each rotation the one whose last entry that is not 0 (of
        w, x, y, z) is positive."""
        quat = _canonical(jnp.asarray(self.quat)) if canonical else self.quat
        return jnp.roll(quat, 1, axis=-1) if scalar_first else quat

    def inv(self) -> Rotation:
        """The rotations back."""
        return Rotation(jnp.asarray(self.quat) * np.array([-1, -1, -1, 1], self.quat.dtype))

    def magnitude(self) -> Any:
        """Angles [...], between 0 and pi."""
        quat = jnp.asarray(self.quat)
        return 2 * jnp.arctan2(jnp.linalg.norm(quat[..., :3], axis=-1), jnp.abs(quat[..., 3]))

    def mean(self, weights: Any = None) -> Rotation:
        """The mean of a stack [n, 4], weighed by `weights` [n] (Markley et al., "Averaging quaternions", 2007).

        Raises:
          ArgumentValueError: weights of another shape.
        """
        quat = jnp.asarray(self.quat)
        weights = jnp.ones(len(self), quat.dtype) if weights is None else jnp.asarray(weights, quat.dtype)
        if weights.ndim != 1:
            raise errors.ArgumentValueError(f"Expected `weights` to be 1 dimensional, got shape {weights.shape}.")
        if weights.shape[0] != len(self):
            raise errors.ArgumentValueError(
                "Expected `weights` to have number of values equal to number of rotations, got "
                f"{weights.shape[0]} values and {len(self)} rotations."
            )
        _, vectors = jnp.linalg.eigh(jnp.dot(weights * quat.T, quat))
        return Rotation(vectors[:, -1])

    @property
    def single(self) -> bool:
        """Whether this is one rotation, not a stack."""
        return bool(self.quat.ndim == 1)


class Slerp(NamedTuple):
    """Rotations between those of given times, at constant angular velocity: `Slerp.init(times, rotations)(at)`.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> turns = msp.spatial.transform.Rotation.from_euler("z", mnp.array([[0.0], [90.0]]), degrees=True)
    >>> between = msp.spatial.transform.Slerp.init(mnp.array([0.0, 1.0]), turns)
    >>> mnp.round(between(0.5).as_euler("zyx", degrees=True))
    Array([45.,  0.,  0.], dtype=float32)
    """

    times: Any
    timedelta: Any
    rotations: Rotation
    rotvecs: Any

    @classmethod
    @usual_promotion
    def init(cls, times: Any, rotations: Rotation) -> Slerp:
        """From increasing times [n] and n rotations.

        Raises:
          ArgumentTypeError: `rotations` is no Rotation.
          ArgumentValueError: fewer than two, or not one per time.
        """
        if not isinstance(rotations, Rotation):
            raise errors.ArgumentTypeError("`rotations` must be a `Rotation` instance.")
        if rotations.single or len(rotations) == 1:
            raise errors.ArgumentValueError("`rotations` must be a sequence of at least 2 rotations.")
        times = jnp.asarray(times, rotations.quat.dtype)
        if times.ndim != 1:
            raise errors.ArgumentValueError(
                f"Expected times to be specified in a 1 dimensional array, got {times.ndim} dimensions."
            )
        if times.shape[0] != len(rotations):
            raise errors.ArgumentValueError(
                "Expected number of rotations to be equal to number of timestamps given, got "
                f"{len(rotations)} rotations and {times.shape[0]} timestamps."
            )
        first, second = Rotation(rotations.quat[:-1]), Rotation(rotations.quat[1:])
        return cls(times, jnp.diff(times), first, (first.inv() * second).as_rotvec())

    @usual_promotion
    def __call__(self, times: Any) -> Rotation:
        """Rotations at times [m], or at one time. ArgumentValueError if `times` has more dimensions."""
        at = jnp.asarray(times, self.times.dtype)
        if at.ndim > 1:
            raise errors.ArgumentValueError(f"`times` must be at most 1-dimensional, got shape {at.shape}.")
        many = jnp.atleast_1d(at)
        index = jnp.maximum(jnp.searchsorted(self.times, many) - 1, 0)
        share = (many - self.times[index]) / self.timedelta[index]
        out = self.rotations[index] * Rotation.from_rotvec(self.rotvecs[index] * share[:, None])
        return out[0] if at.ndim == 0 else out


def _axes(seq: str, counts: Sequence[int], wanted: str) -> tuple[tuple[int, ...], bool]:
    """The axes that a string names, and whether they turn along (capitals)."""
    if len(seq) not in counts:
        raise errors.ArgumentValueError(f"Expected axis specification to be {wanted}, got {seq}")
    turning = re.fullmatch("[XYZ]+", seq) is not None
    if not turning and re.fullmatch("[xyz]+", seq) is None:
        raise errors.ArgumentValueError(
            f"Expected axes from `seq` to be from ['x', 'y', 'z'] or ['X', 'Y', 'Z'], got {seq}"
        )
    axes = tuple("xyz".index(c) for c in seq.lower())
    if any(a == b for a, b in itertools.pairwise(axes)):
        raise errors.ArgumentValueError(f"Expected consecutive axes to be different, got {seq}")
    return axes, turning


def _length(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(x * x, axis=-1))


@jit
def _normalised(quat: Any) -> Any:
    return quat / _length(quat)[..., None]


def _product(p: Any, q: Any) -> Any:
    """Hamilton's product: the rotation q and then p."""
    (u, a), (v, b) = ((jnp.asarray(x)[..., :3], jnp.asarray(x)[..., 3:]) for x in (p, q))
    vector = a * v + b * u + jnp.cross(u, v)
    return jnp.concatenate([vector, a * b - jnp.sum(u * v, axis=-1, keepdims=True)], axis=-1)


@jit(static_argnums=2)
def _applied(quat: Any, vectors: Any, inverse: bool) -> Any:
    quat, vectors = separate("apply", quat, vectors)
    matrix = _as_matrix(quat)
    matrix = jnp.swapaxes(matrix, -1, -2) if inverse else matrix
    return jnp.einsum("...ij,...j->...i", matrix, vectors)


@jit
def _as_matrix(quat: Any) -> Any:
    x, y, z, w = jnp.moveaxis(quat, -1, 0)
    rows = (
        (x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), y * y - x * x - z * z + w * w, 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), z * z - x * x - y * y + w * w),
    )
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


@jit
def _from_matrix(matrix: Any) -> Any:
    """By the largest of x, y, z, w: the others are quotients by it (Shepperd, "Quaternion from rotation matrix",
    1978)."""
    m = [[matrix[..., i, j] for j in range(3)] for i in range(3)]
    trace = m[0][0] + m[1][1] + m[2][2]
    rows = []
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        entries = {i: 1 - trace + 2 * m[i][i], j: m[j][i] + m[i][j], k: m[k][i] + m[i][k], 3: m[k][j] - m[j][k]}
        rows.append(jnp.stack([entries[e] for e in range(4)], -1))
    rows.append(jnp.stack([m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1], 1 + trace], -1))
    largest = jnp.argmax(jnp.stack([m[0][0], m[1][1], m[2][2], trace], -1), axis=-1)
    chosen = jnp.take_along_axis(jnp.stack(rows, -2), largest[..., None, None], axis=-2)
    return _normalised(chosen[..., 0, :])


@jit
def _as_mrp(quat: Any) -> Any:
    quat = jnp.where(quat[..., 3:] < 0, -quat, quat)
    return quat[..., :3] / (1 + quat[..., 3:])


@jit
def _from_mrp(mrp: Any) -> Any:
    more = jnp.sum(mrp * mrp, axis=-1, keepdims=True) + 1
    return jnp.concatenate([2 * mrp, 2 - more], axis=-1) / more


@jit
def _as_rotvec(quat: Any) -> Any:
    quat = jnp.where(quat[..., 3:] < 0, -quat, quat)
    sine = _length(quat[..., :3])
    angle = 2 * jnp.arctan2(sine, quat[..., 3])
    square = angle * angle
    small = angle <= _SMALL
    scale = jnp.where(small, 2 + square / 12 + 7 * square * square / 2880, angle / jnp.where(small, 1, sine))
    return scale[..., None] * quat[..., :3]


@jit
def _from_rotvec(rotvec: Any) -> Any:
    square = jnp.sum(rotvec * rotvec, axis=-1)
    small = square <= _SMALL**2
    angle = jnp.sqrt(jnp.where(small, 1, square))  # no infinite derivative at 0
    scale = jnp.where(small, 0.5 - square / 48 + square * square / 3840, jnp.sin(angle / 2) / angle)
    real = jnp.where(small, 1 - square / 8 + square * square / 384, jnp.cos(angle / 2))
    return jnp.concatenate([scale[..., None] * rotvec, real[..., None]], axis=-1)


@jit(static_argnums=(1, 2, 3))
def _from_euler(angles: Any, axes: tuple[int, ...], turning: bool, degrees: bool) -> Any:
    halves = (jnp.deg2rad(angles) if degrees else angles) / 2
    total: Any = None
    for n, axis in enumerate(axes):
        sine, cosine = jnp.sin(halves[..., n]), jnp.cos(halves[..., n])
        zero = jnp.zeros_like(sine)
        one = jnp.stack([*(sine if i == axis else zero for i in range(3)), cosine], -1)
        total = one if total is None else _product(total, one) if turning else _product(one, total)
    return total


@jit(static_argnums=(1, 2))
def _as_euler(quat: Any, axes: tuple[int, ...], turning: bool) -> Any:
    """Angles about axes that turn along are those about fixed axes in the reverse order."""
    i, j, k = reversed(axes) if turning else axes
    proper = i == k
    if proper:
        k = 3 - i - j
    sign = (i - j) * (j - k) * (k - i) // 2  # of the permutation
    q = [quat[..., n] for n in range(4)]
    if proper:
        a, b, c, d = q[3], q[i], q[j], sign * q[k]
    else:
        a, b, c, d = q[3] - q[j], q[i] + sign * q[k], q[j] + q[3], sign * q[k] - q[i]
    middle = 2 * jnp.arctan2(jnp.hypot(c, d), jnp.hypot(a, b))
    least = max(1e-7, 8 * float(dtypes.finfo(quat.dtype).eps))
    at_zero, at_pi = jnp.abs(middle) <= least, jnp.abs(middle - np.pi) <= least
    locked = at_zero | at_pi
    total, apart = jnp.arctan2(b, a), jnp.arctan2(d, c)
    # Where only the sum or the difference of two angles is known, the one that turns last keeps nothing.
    known = jnp.where(at_zero, 2 * total, 2 * apart * (1 if turning else -1))
    first, third = total - apart, total + apart
    if turning:
        first, third = jnp.where(locked, 0, first), jnp.where(locked, known, third)
    else:
        first, third = jnp.where(locked, known, first), jnp.where(locked, 0, third)
    if not proper:
        third, middle = third * sign, middle - np.pi / 2
    angles = jnp.stack([third, middle, first] if turning else [first, middle, third], -1)
    return (angles + np.pi) % (2 * np.pi) - np.pi


@jit
def _canonical(quat: Any) -> Any:
    negative: Any = False
    for n in (2, 1, 0, 3):  # the last entry looked at decides, unless it is 0
        entry = quat[..., n]
        negative = jnp.where(entry == 0, negative, entry < 0)
    return jnp.where(negative[..., None], -quat, quat)
