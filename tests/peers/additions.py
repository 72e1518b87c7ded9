"""The edges of the graphs of additions: the same as those of `placewright bench dispatch`."""

WIDTH = 100  # nodes of a layer of the layered graph


def inputs_of(case, index):
    """Returns the inputs of addition `index`."""
    if case == "chain":
        return [f"a{index - 1}" if index else "x", "x"]
    if case == "independent" or index < WIDTH:
        return ["x", "x"]
    layer, place = index // WIDTH - 1, index % WIDTH
    return [f"a{layer * WIDTH + place}", f"a{layer * WIDTH + (place + 1 + layer % 7) % WIDTH}"]


def first_unread(case, n_nodes):
    """Returns the first addition that `done` waits for; other additions read those before it."""
    if case == "chain":
        return n_nodes - 1
    if case == "independent":
        return 0
    return max((n_nodes - 1) // WIDTH * WIDTH - WIDTH, 0)
