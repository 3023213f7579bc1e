#!/usr/bin/env python3
"""Writes src/core/formats/codebook_tables.h: the points that GGUF's formats IQ1 to IQ3 choose from, as the gguf
package (MIT licence, github.com/ggml-org/llama.cpp, gguf-py/gguf/quants.py) has them: a number of the format is one of a
few magnitudes, and a point is written here as the places of its numbers among them, 2 or 3 bits each.

Needs numpy and gguf. Run from the repository root: python3 tools/formats/make_codebooks.py
"""

import pathlib

import numpy as np
from gguf import quants

LINE = 110
# Name, the package's class and a number's bits.
TABLES = [("iq2_xxs", quants.IQ2_XXS, 2), ("iq2_xs", quants.IQ2_XS, 2), ("iq2_s", quants.IQ2_S, 2),
          ("iq3_xxs", quants.IQ3_XXS, 3), ("iq3_s", quants.IQ3_S, 3), ("iq1", quants.IQ1_S, 2)]
# What codebooks.h computes of a place.
MAGNITUDES = {
    "iq2_xxs": lambda place: 8 + 17 * place + (place >> 1),
    "iq3_xxs": lambda place: 4 + 8 * place + ((place + 1) >> 3 << 1),
    "iq3_s": lambda place: 1 + 2 * place,
    "iq1": lambda place: place - 1,
}
MAGNITUDES["iq2_xs"] = MAGNITUDES["iq2_s"] = MAGNITUDES["iq2_xxs"]

HEAD = """#pragma once

#include "core/formats/numbers.h"

// The points of codebooks.h. Written by tools/formats/make_codebooks.py from the gguf package; do not edit.

// clang-format off
namespace tessera::formats {
"""


def packed_points(name, kind, bits):
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape).astype(np.int64)
    places = np.searchsorted(np.array(kind.grid_map), grid)
    assert (np.array(kind.grid_map)[places] == grid).all(), name
    assert [MAGNITUDES[name](place) for place in range(len(kind.grid_map))] == list(kind.grid_map), name
    points = (places << (bits * np.arange(places.shape[1]))).sum(axis=1)
    assert points.max() < 1 << 16 and len(set(points.tolist())) == len(points), name
    return points


def main():
    text = HEAD
    for name, kind, bits in TABLES:
        points = packed_points(name, kind, bits)
        text += f"\n/// {kind.grid_shape[1]} numbers of {bits} bits each, the first lowest.\n"
        text += f"TESSERA_FORMAT_TABLE({name}_point, {len(points)},\n"
        line = "   "
        for place, point in enumerate(points):
            word = f" {point:#06x}" + (")" if place + 1 == len(points) else ",")
            if len(line) + len(word) > LINE:
                text += line + "\n"
                line = "   "
            line += word
        text += line + "\n"
    text += "\n}  // namespace tessera::formats\n// clang-format on\n"
    pathlib.Path("src/core/formats/codebook_tables.h").write_text(text)


if __name__ == "__main__":
    main()
