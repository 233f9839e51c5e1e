"""Draw the figures of docs/concepts.md: ``python docs/figures.py`` writes docs/images/concept_*.svg.

The directions, the ball and the hull are computed by `pogm.pareto`, so the figures show what POGM does.
"""

import math
from itertools import pairwise
from pathlib import Path

import torch

from pogm import pareto
from pogm.pareto.hull import nearest_mixture

FOLDER = Path(__file__).parent / "images"
BLUE, ORANGE, GREEN, PURPLE, GREY, INK = "#0072b2", "#d55e00", "#008060", "#a04080", "#8a8a8a", "#222222"
COLOURS = (BLUE, ORANGE, GREEN)
Point = tuple[float, float]

TRAJECTORIES = torch.tensor([[1.9, 0.5], [1.1, 1.5], [-0.7, 1.2]], dtype=torch.float64)  # h_1, h_2, h_3
KAPPA = 0.5


class Drawing:
    """An SVG drawing in pixels, with a white background."""

    def __init__(self, width: int, height: int, title: str):
        self.size, self.title, self.parts = (width, height), title, []

    def line(self, a: Point, b: Point, colour: str = INK, width: float = 1.5, dash: str = "") -> None:
        """Draw a line."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{dashes}/>'
        )

    def arrow(self, a: Point, b: Point, colour: str = INK, width: float = 2, dash: str = "") -> None:
        """Draw a line with a head at its end."""
        angle, head = math.atan2(b[1] - a[1], b[0] - a[0]), 5 + 2 * width
        self.line(a, (b[0] - 0.8 * head * math.cos(angle), b[1] - 0.8 * head * math.sin(angle)), colour, width, dash)
        sides = [(b[0] - head * math.cos(angle + s), b[1] - head * math.sin(angle + s)) for s in (-0.4, 0.4)]
        self.polygon([b, *sides], colour, fill=colour)

    def polygon(self, points: list[Point], colour: str, fill: str = "none", opacity: float = 1) -> None:
        """Draw a closed shape."""
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon points="{listed}" stroke="{colour}" fill="{fill}" fill-opacity="{opacity}"/>')

    def circle(
        self, centre: Point, radius: float, colour: str, fill: str = "none", opacity: float = 1, dash: str = ""
    ) -> None:
        """Draw a circle."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<circle cx="{centre[0]:.1f}" cy="{centre[1]:.1f}" r="{radius:.1f}" stroke="{colour}" fill="{fill}" '
            f'fill-opacity="{opacity}" stroke-width="1.5"{dashes}/>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 0.12) -> None:
        """Draw a filled rectangle."""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{colour}" '
            f'fill-opacity="{opacity}" stroke="{colour}"/>'
        )

    def text(self, at: Point, text: str, colour: str = INK, size: int = 14, anchor: str = "middle") -> None:
        """Write text; ``_`` starts a subscript of one character."""
        first, *rest = text.split("_")
        written = first + "".join(
            f'<tspan dy="4" font-size="{size - 4}">{part[0]}</tspan><tspan dy="-4">{part[1:]}</tspan>' for part in rest
        )
        self.parts.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">'
            f"{written}</text>"
        )

    def svg(self) -> str:
        """Return the file."""
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" role="img"><title>{self.title}</title><rect width="{width}" height="{height}" '
            'rx="6" fill="#ffffff"/>'
        )
        return "\n".join([head, *self.parts, "</svg>"]) + "\n"


class Plane:
    """Coordinates of vectors in a drawing: an origin and a scale, with y upwards."""

    def __init__(self, origin: Point, scale: float):
        self.origin, self.scale = origin, scale

    def __call__(self, vector: torch.Tensor) -> Point:
        x, y = vector.tolist()
        return self.origin[0] + self.scale * x, self.origin[1] - self.scale * y


def domain() -> Drawing:
    """Draw two classes in three training domains and in one unseen domain."""
    drawing = Drawing(720, 230, "Two classes in three training domains and in an unseen domain")
    generator = torch.Generator().manual_seed(3)
    names = ("hospital A", "hospital B", "hospital C", "hospital D")
    shifts = torch.tensor([[-0.35, -0.3], [0.35, -0.2], [0.1, 0.35], [-0.2, 0.4]])
    for number, (name, shift) in enumerate(zip(names, shifts, strict=True)):
        colour = (*COLOURS, GREY)[number]
        plane = Plane((93 + 178 * number, 105), 42)
        drawing.box(14 + 178 * number, 32, 158, 150, colour, 0.08)
        drawing.text((93 + 178 * number, 22), name, colour)
        for label, mean in enumerate((-0.55, 0.55)):
            for noise in torch.randn(9, 2, generator=generator):
                at = plane(shift + torch.tensor([mean, 0.0]) + 0.28 * noise)
                if label:
                    drawing.box(at[0] - 4, at[1] - 4, 8, 8, colour, 0.9)
                else:
                    drawing.circle(at, 4, colour, "#ffffff")
    drawing.text((271, 212), "training domains: images and labels are known", INK)
    drawing.text((627, 212), "unseen domain", INK)
    return drawing


def trajectory() -> Drawing:
    """Draw copies of the model that are trained for three minibatches each."""
    drawing = Drawing(720, 300, "Each domain trains a copy of the model; its displacement is its trajectory")
    plane = Plane((280, 240), 118)
    start = plane(torch.zeros(2))
    for number, (vector, bend) in enumerate(zip(TRAJECTORIES, (0.18, 0.16, -0.2), strict=True)):
        normal = torch.stack([-vector[1], vector[0]]) / vector.norm()
        places = [
            plane(share * vector + bend * side * normal) for share, side in ((0, 0), (0.3, 1), (0.68, 0.8), (1, 0))
        ]
        for a, b in pairwise(places):
            drawing.line(a, b, COLOURS[number], 1.5, "4 3")
            drawing.circle(b, 3, COLOURS[number], COLOURS[number])
        drawing.arrow(start, places[-1], COLOURS[number], 2.5)
        offset = ((10, 24), (14, -4), (-14, -8))[number]
        anchor = ("start", "start", "end")[number]
        end = places[-1]
        drawing.text(
            (end[0] + offset[0], end[1] + offset[1]),
            f"h_{number + 1} = θ_{number + 1} − θ",
            COLOURS[number],
            15,
            anchor,
        )
    drawing.circle(start, 5, INK, INK)
    drawing.text((start[0] - 12, start[1] + 20), "θ, the shared model", INK, 14, "end")
    drawing.text((20, 30), "dashed: the steps of a copy", GREY, 13, "start")
    drawing.text((20, 50), "solid: its trajectory", GREY, 13, "start")
    return drawing


def gramian() -> Drawing:
    """Draw the inner products of the trajectories as a matrix."""
    drawing = Drawing(720, 230, "The Gramian: inner products of all pairs of trajectories")
    gram = TRAJECTORIES @ TRAJECTORIES.T
    left, top, cell = 90, 50, 52
    for i in range(3):
        drawing.text((left - 22, top + cell * i + 31), f"h_{i + 1}", COLOURS[i], 16)
        drawing.text((left + cell * i + 26, top - 14), f"h_{i + 1}", COLOURS[i], 16)
        for j in range(3):
            value = gram[i, j].item()
            drawing.box(left + cell * j, top + cell * i, cell, cell, ORANGE if value < 0 else BLUE, 0.06 * abs(value))
            drawing.text((left + cell * j + 26, top + cell * i + 31), f"{value:.1f}".replace("-", "−"), INK, 15)
    lines = (
        ("on the diagonal: the squared length of a trajectory", BLUE),
        ("positive: two domains agree", BLUE),
        ("negative: two domains conflict", ORANGE),
        ("K × K numbers, however large the network is", INK),
    )
    for number, (line, colour) in enumerate(lines):
        drawing.text((290, 78 + 32 * number), line, colour, 14, "start")
    return drawing


def ball() -> Drawing:
    """Draw the ball around the centre and the best direction in it."""
    drawing = Drawing(720, 340, "The direction in the ball with the largest worst agreement")
    plane = Plane((130, 308), 128)
    origin, centre = plane(torch.zeros(2)), TRAJECTORIES.mean(0) + torch.tensor([0.35, -0.25])
    gram = TRAJECTORIES @ TRAJECTORIES.T
    solution = pareto.solve(gram, KAPPA, centre=(TRAJECTORIES @ centre, centre @ centre))
    direction = centre + solution.weights @ TRAJECTORIES
    drawing.circle(plane(centre), KAPPA * centre.norm().item() * plane.scale, PURPLE, PURPLE, 0.08, "5 3")
    for number, vector in enumerate(TRAJECTORIES):
        end = plane(vector)
        drawing.arrow(origin, end, COLOURS[number], 2)
        drawing.text(
            (end[0] + (14, 0, -12)[number], end[1] - (2, 10, 8)[number]), f"h_{number + 1}", COLOURS[number], 16
        )
    drawing.arrow(origin, plane(centre), GREY, 3)
    drawing.text((plane(centre)[0] + 16, plane(centre)[1] + 18), "h_0", GREY, 16)
    drawing.arrow(origin, plane(direction), PURPLE, 3.5)
    drawing.text((plane(direction)[0] - 12, plane(direction)[1] - 8), "d", PURPLE, 18)
    before, after = (min((TRAJECTORIES @ step).tolist()) for step in (centre, direction))
    lines = (
        ("h_0: the step of ERM (the centre)", GREY),
        ("dashed: all steps d with ‖d − h_0‖ ≤ κ‖h_0‖", PURPLE),
        (f"worst agreement of h_0: {before:+.2f}".replace("-", "−"), GREY),
        (f"worst agreement of d:   {after:+.2f}".replace("-", "−"), PURPLE),
        (f"here κ = {KAPPA}; the default is 0.1", INK),
    )
    for number, (line, colour) in enumerate(lines):
        drawing.text((420, 60 + 28 * number), line, colour, 14, "start")
    return drawing


def hull() -> Drawing:
    """Draw the convex hull of the trajectories and the trajectory of the unseen domain outside of it."""
    drawing = Drawing(720, 300, "The convex hull of the trajectories, and an unseen domain outside of it")
    plane = Plane((130, 268), 118)
    origin = plane(torch.zeros(2))
    drawing.polygon([plane(vector) for vector in TRAJECTORIES], BLUE, BLUE, 0.1)
    for number, vector in enumerate(TRAJECTORIES):
        end = plane(vector)
        drawing.line(origin, end, COLOURS[number], 1.2, "3 3")
        drawing.circle(end, 5, COLOURS[number], COLOURS[number])
        drawing.text(
            (end[0] + (18, 8, -16)[number], end[1] - (0, 12, 8)[number]), f"h_{number + 1}", COLOURS[number], 16
        )
    unseen = torch.tensor([0.15, 1.9], dtype=torch.float64)
    inner_products = (TRAJECTORIES @ TRAJECTORIES.T, TRAJECTORIES @ unseen, unseen @ unseen)
    _, mixture = nearest_mixture(*(value[None] for value in inner_products))
    nearest = mixture[0] @ TRAJECTORIES
    drawing.arrow(origin, plane(unseen), PURPLE, 2)
    drawing.text((plane(unseen)[0] - 16, plane(unseen)[1] + 6), "h_T", PURPLE, 16)
    drawing.line(plane(unseen), plane(nearest), INK, 1.5)
    drawing.circle(plane(nearest), 4, INK, "#ffffff")
    drawing.text((plane(nearest)[0] + 14, plane(nearest)[1] + 18), "p", INK, 16)
    share = ((unseen - nearest).norm() / unseen.norm()).item()
    lines = (
        ("blue: mixtures of the training domains", BLUE),
        ("h_T: the step of the unseen domain", PURPLE),
        ("p: the nearest mixture", INK),
        (f"distance ‖h_T − p‖ / ‖h_T‖ = {share:.2f}", INK),
    )
    for number, (line, colour) in enumerate(lines):
        drawing.text((420, 50 + 28 * number), line, colour, 14, "start")
    return drawing


def selection() -> Drawing:
    """Draw which parts of the data each selection rule looks at."""
    drawing = Drawing(720, 290, "Parts of the data that each selection rule uses")
    rows = ("training domain A", "training domain B", "held-out domain")
    for number, name in enumerate(rows):
        y = 58 + 62 * number
        colour = GREY if number == 2 else COLOURS[number]
        drawing.text((150, y + 26), name, colour, 14, "end")
        drawing.box(162, y, 280, 40, colour, 0.12)
        drawing.box(448, y, 70, 40, colour, 0.45)
        drawing.text((302, y + 26), "reported accuracy" if number == 2 else "used for training", INK, 14)
    drawing.text((302, 44), "in split, 80 %", INK, 13)
    drawing.text((483, 44), "out split, 20 %", INK, 13)
    drawing.line((530, 60), (530, 158), GREEN, 3)
    drawing.text((540, 102), "training-domain", GREEN, 14, "start")
    drawing.text((540, 122), "validation", GREEN, 14, "start")
    drawing.line((530, 184), (530, 220), ORANGE, 3)
    drawing.text((540, 198), "test-domain validation", ORANGE, 14, "start")
    drawing.text((540, 218), "(oracle)", ORANGE, 14, "start")
    drawing.text(
        (360, 268), "Leave-one-domain-out: further runs that also hold out A or B choose the configuration.", INK, 13
    )
    return drawing


FIGURES = (domain, trajectory, gramian, ball, hull, selection)


def main() -> None:
    """Write all figures."""
    for figure in FIGURES:
        (FOLDER / f"concept_{figure.__name__}.svg").write_text(figure().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
