#pragma once

// Included before the tests of the CPU's ops to make them those of another backend.

#include "backends/factories.h"
#include "kernels/tested_ops.h"

#define make_cpu_ops make_tested_ops
#define make_ops_backend make_tested_ops_backend
