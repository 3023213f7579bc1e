#pragma once

#include "command.h"

namespace tessera::cli {

// Each adds one sub-command to its parent.
void add_run_command(Command& parent);
void add_chat_command(Command& parent);
void add_serve_command(Command& parent);
void add_tokenize_command(Command& parent);
void add_logits_command(Command& parent);
void add_bench_attention_command(Command& parent);
void add_bench_kernels_command(Command& parent);
void add_bench_model_command(Command& parent);
void add_tune_attention_command(Command& parent);
void add_verify_command(Command& parent);
void add_explain_command(Command& parent);
void add_info_command(Command& parent);
void add_cache_command(Command& parent);
void add_quantize_command(Command& parent);

}  // namespace tessera::cli
