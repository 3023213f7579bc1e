/* Compiled as C99. */
#include "tessera/tessera.h"

/* A file of a standard must declare something. */
extern int tessera_header_compiled;
