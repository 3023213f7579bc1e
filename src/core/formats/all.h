#pragma once

#include "core/formats/list.h"
#include "core/formats/q8_0.h"
