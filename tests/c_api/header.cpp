// Compiled as C++.
#include "tessera/tessera.h"
