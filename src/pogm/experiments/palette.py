"""Colours of the figures. A method has the same colour in all of them."""

GREY = 6  # for lines of no method
DASHED = 7  # added to a colour: the same colour, dashed
METHODS = {"ERM": 0, "Fish": 1, "Fishr": 2, "POGM": 3, "MGDA": 4, "UPGrad": 5, "Reptile": 3 + DASHED}
