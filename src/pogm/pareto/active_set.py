"""Active-set solver for one small problem on a CPU, in Python floats.

On a CPU an operation on three numbers costs as much as one on a thousand, so Python floats are faster than tensors. An
active-set method finds the face of the simplex, and the closed form in `face_enumeration` gives the mixture on it. The
solver returns None if the optimum is not clearly unique (dependent or zero updates, ties, h_π = 0); then the general
solvers are used.
"""

import math

from torch import Tensor

from pogm.core.compilation import inside_transform
from pogm.pareto.problem import Centre

LARGEST = 64  # domains; tensors are faster beyond
FAR = 1e6
CLEAR = 1e-6  # least distance from a tie, a zero or a singular face, in units of the updates


def solve_small(
    G: Tensor, radius: float, step_radius: float, centre: Centre | None = None
) -> tuple[list[float], list[float], float, float] | None:
    """Return mixture, weights, worst alignment and gap as in `Solution`; None if the optimum is not clearly unique."""
    scale, G_list, b, centre_norm = _normalise(G, centre)
    if not (centre_norm > CLEAR and radius > CLEAR and min(G_list[i][i] for i in range(len(b))) > CLEAR):
        return None  # also if a number is NaN
    K = len(b)
    face = list(range(K))
    for _ in range(3 * K):
        mixture = _solve_face(G_list, b, radius, face)
        if mixture is None:
            return None
        if any(mixture[j] < 0 for j in face):
            face = [j for j in face if mixture[j] > 0]
            continue
        products = [sum(row[j] * mixture[j] for j in face) for row in G_list]
        norm = math.sqrt(sum(mixture[j] * products[j] for j in face))  # ‖h_π‖
        if norm < 1e-3:
            return None
        level = sum(b[j] * mixture[j] for j in face) + radius * norm  # q
        aligned = [b[i] + radius * products[i] / norm for i in range(K)]
        worst = min(range(K), key=aligned.__getitem__)
        if worst not in face and aligned[worst] < level - CLEAR:
            face = sorted([*face, worst])
            continue
        margin = min([mixture[j] for j in face] + [aligned[i] - level for i in range(K) if i not in face])
        gap = level - aligned[worst]
        if margin < CLEAR or gap > 1e-12:
            return None
        mean = 1 / K if centre is None else 0.0  # weights of h_0
        weights = [mean + step_radius * centre_norm * share / norm for share in mixture]
        unit = centre_norm * scale
        return mixture, weights, unit * aligned[worst], unit * max(gap, 0.0)
    return None


def is_applicable(G: Tensor, *radii: float | Tensor) -> bool:
    """Return whether this is a single problem on a CPU, outside of `vmap` and of compilation."""
    are_numbers = all(isinstance(radius, float | int) and 0 <= radius < math.inf for radius in radii)
    outside = not inside_transform()
    square = G.ndim == 2 and G.shape[0] == G.shape[1] and 0 < len(G) <= LARGEST
    return are_numbers and square and G.device.type == "cpu" and outside


def _normalise(G: Tensor, centre: Centre | None) -> tuple[float, list[list[float]], list[float], float]:
    """Return trace(G) / K, G divided by it, h_i·h_0 / ‖h_0‖, and ‖h_0‖."""
    rows: list[list[float]] = G.tolist()
    K = len(rows)
    scale = sum(rows[i][i] for i in range(K)) / K
    if not 0 < scale < math.inf:
        return scale, rows, [0.0] * K, 0.0
    rows = [[value / scale for value in row] for row in rows]
    if centre is None:
        products = [sum(row) / K for row in rows]
        square = sum(products) / K
    else:
        products = [value / scale for value in centre[0].tolist()]
        square = centre[1].item() / scale
    norm = math.sqrt(square) if square > 0 else 0.0
    return scale, rows, [value / norm if norm > 0 else 0.0 for value in products], norm


def _solve_face(G: list[list[float]], b: list[float], radius: float, face: list[int]) -> list[float] | None:
    """Return π = w − z √(wᵀGw / (r² − zᵀGz)), see `face_enumeration.solve_on_faces`, with zeros outside the face."""
    factor = _cholesky([[G[i][j] for j in face] for i in face])
    if factor is None:
        return None
    ones = _solve(factor, [1.0] * len(face))
    along = _solve(factor, [b[i] for i in face])  # v
    total, share = sum(ones), sum(along)
    nearest = [value / total for value in ones]  # w, with wᵀGw = 1 / total
    along = [value - share * near for value, near in zip(along, nearest, strict=True)]  # z, with zᵀGz = zᵀb
    room = radius**2 - sum(value * b[i] for value, i in zip(along, face, strict=True))
    # If room ≤ 0, q decreases without bound along −z. Far along −z, negative entries show which updates to remove.
    root = math.sqrt(1 / (total * room)) if room > CLEAR * radius**2 else FAR
    mixture = [0.0] * len(b)
    for i, near, value in zip(face, nearest, along, strict=True):
        mixture[i] = near - value * root
    return mixture


def _cholesky(matrix: list[list[float]]) -> list[list[float]] | None:
    """Return the lower Cholesky factor, or None if the matrix is nearly singular."""
    size = len(matrix)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        row = lower[i]
        for j in range(i):
            other = lower[j]
            row[j] = (matrix[i][j] - sum(row[k] * other[k] for k in range(j))) / other[j]
        pivot = matrix[i][i] - sum(row[k] ** 2 for k in range(i))
        if not pivot > CLEAR * matrix[i][i]:
            return None
        row[i] = math.sqrt(pivot)
    return lower


def _solve(lower: list[list[float]], right: list[float]) -> list[float]:
    """Solve L Lᵀ x = right."""
    size = len(right)
    x = list(right)
    for i in range(size):
        x[i] = (x[i] - sum(lower[i][k] * x[k] for k in range(i))) / lower[i][i]
    for i in reversed(range(size)):
        x[i] = (x[i] - sum(lower[k][i] * x[k] for k in range(i + 1, size))) / lower[i][i]
    return x
