"""The colours of the figures: a method has the same one in all of them."""

GREY = 6  # what belongs to no method
DASHED = 7  # added to a colour: the same colour, dashed
METHODS = {"ERM": 0, "Fish": 1, "Fishr": 2, "POGM": 3, "MGDA": 4, "UPGrad": 5, "Reptile": 3 + DASHED}
