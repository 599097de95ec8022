"""The allreduces that are made for the links of a machine, in words: what --help needs of them.

Imports nothing. `for_links` makes their schedules.
"""

MULTI_RING, SYNTHESISED, AUTO = "multi_ring", "synthesised", "auto"
SUMMARIES = {
    MULTI_RING: "from scratch: as many rings as the links carry at once",
    SYNTHESISED: "from scratch: schedules that a solver has found for the links, by size",
    AUTO: "the one with the lowest price for the links, of all these schedules, by size",
}
