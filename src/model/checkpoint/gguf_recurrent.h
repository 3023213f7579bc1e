#pragma once

#include "model/checkpoint/checkpoint.h"

namespace tessera {

/// Puts the tensors of layers without attention, and of gates of attention's output, into the form that GGUF
/// files of the model's architecture have them in, which WeightCollector::gather_recurrent reads. Names are
/// Checkpoint's, or those that it reads. Throws Error{kUnsupported} for blocks that can't be put into the
/// order of heads there.
void make_gguf_recurrent_form(Checkpoint& checkpoint);

}  // namespace tessera
