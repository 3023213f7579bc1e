#pragma once

#include "core/formats/blocks_of_32.h"
#include "core/formats/codebooks.h"
#include "core/formats/four_bit_tables.h"
#include "core/formats/k_blocks.h"
#include "core/formats/list.h"
#include "core/formats/q8_0.h"
#include "core/formats/ternary.h"
