"""Arrays that tests compute with, and how far results in fp32 may be off."""

import numpy as np

RNG = np.random.default_rng(0)
# Weighted means of some tens of values about 1 in fp32: tens of roundings of 6e-8.
F32_BOUND = 5e-6


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def bshd(x):
    return np.swapaxes(x, 1, 2)


class OnlyDlpack:
    """An array of another library, which says nothing but by DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
